"""`/v1/responses`: the OpenAI Responses API. `core.dialects.responses` converts, `response_turns` stores."""

import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from addon.core.dialects.responses.answer import sse
from addon.core.dialects.responses.conversations import compacted, input_page
from addon.core.dialects.responses.options import INCLUDABLE
from addon.core.dialects.responses.request import ResponsesRequest
from addon.core.framing.documents import Document, encode
from addon.gateway.background import KEEP_ALIVE, BackgroundResponses, Run
from addon.gateway.conversations import Conversations
from addon.gateway.downloads import Download
from addon.gateway.engine import Caller, Engine
from addon.gateway.failures import TurnFailed
from addon.gateway.front_door import LIST, DoorRoute, FrontDoor, session_of
from addon.gateway.handover import Handover, HandoverResponse
from addon.gateway.items import INPUT, ItemIds, without_input
from addon.gateway.response_turns import Events, ResponseTurns
from addon.gateway.sealing import Sealing
from addon.gateway.streaming import Stream, answer_while_connected, ending_problem
from addon.web.api import ApiContext
from addon.web.problems import Problem
from store.base import UnknownResponse
from store.models import Response as Record

PATH = "/v1/responses"
IGNORED = "x-graft-ignored"
"""The header of an answer that lists ignored members of the request, with `graft_lenient`."""
_LONGEST_NAME = 100
_DIGITS = 10

_ASKED: Document = {
    "model": "gemini-3-flash",
    "input": "What is the weather in Tokyo?",
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        }
    ],
    "conversation": "trip",
}


class ResponsesRoutes(FrontDoor):
    def __init__(
        self, engine: Engine, conversations: Conversations, key: str, download: Download | None = None
    ) -> None:
        super().__init__(engine, conversations, key, download)
        self.turns = ResponseTurns(engine, conversations, download)
        self.background = BackgroundResponses(self.store, lambda: engine.proxy_id)

    def routes(self) -> list[BaseRoute]:
        return [
            DoorRoute(
                "POST",
                PATH,
                self.create_response,
                "Ask Gemini as OpenAI's Responses API",
                example=_ASKED,
                required=("model", "input"),
            ),
            DoorRoute(
                "POST",
                f"{PATH}/compact",
                self.compact,
                "Summarize a conversation",
                example={"model": "gemini-3-flash", "previous_response_id": "resp_5d0c2f"},
                required=("model",),
            ),
            DoorRoute(
                "POST",
                f"{PATH}/input_tokens",
                self.count_input_tokens,
                "Count the tokens of a request",
                example=_ASKED,
                required=("model", "input"),
            ),
            DoorRoute("GET", f"{PATH}/{{response_id}}", self.show_response, "Show a response again"),
            DoorRoute("POST", f"{PATH}/{{response_id}}/cancel", self.cancel_response, "Cancel a background response"),
            DoorRoute(
                "GET", f"{PATH}/{{response_id}}/input_items", self.list_input_items, "List its input", query=LIST
            ),
            DoorRoute("DELETE", f"{PATH}/{{response_id}}", self.delete_response, "Delete a response"),
        ]

    async def create_response(self, api: ApiContext, request: Request) -> Response:
        """A request of an OpenAI client, streamed or not. Calls of the client's own functions are returned as
        `function_call` items; the proxy runs the session's tools."""
        caller, body, handover = await self.receive(request, api, PATH)
        parsed, ignored = await self._read(api, caller, body)
        if parsed.background:
            return await self._begin(api, caller, parsed, handover, ignored)
        events = self.turns.events(caller, parsed, handover, api.ending)
        return await answer_while_connected(
            request, api, handover, lambda: _answered(api, events, stream=parsed.stream, ignored=ignored)
        )

    async def compact(self, api: ApiContext, request: Request) -> Response:
        """A compaction item, which stands for the conversation in the `input` of a later request. Gemini writes the
        summary in it, without tools; nothing is stored."""
        caller, body, handover = await self.receive(request, api, f"{PATH}/compact")
        sealing = Sealing(self.store, caller.session)
        parsed = await self.turns.read_compaction(caller.session, body)
        events = self.turns.events(caller, parsed, handover, api.ending)

        def show(response: Document) -> Document:
            if (
                found := compacted(response, lambda text: sealing.seal(text, "summary"), ItemIds(response["id"]))
            ) is None:
                raise TurnFailed(502, "toolgraft: the model wrote no summary")
            return found

        return await answer_while_connected(
            request, api, handover, lambda: _answered(api, events, stream=False, show=show)
        )

    async def count_input_tokens(self, api: ApiContext, request: Request) -> Response:
        """As Gemini counts them: with the history that the request continues, and with the session's tools. Nothing
        is stored."""
        caller, body, handover = await self.receive(request, api, f"{PATH}/input_tokens")

        async def count() -> Response:
            parsed, ignored = await self._read(api, caller, body)
            tokens = await self.turns.count_tokens(caller, parsed, handover)
            counted = {"object": "response.input_tokens", "input_tokens": tokens}
            return _json(counted, _headers(ignored))

        return await answer_while_connected(request, api, handover, count)

    async def show_response(self, api: ApiContext, request: Request, response_id: str) -> Response:
        """A background response as it is now. With `stream=true` its events, those after `starting_after` only, as
        long as the proxy that makes it keeps them."""
        after = _events_after(request)
        session = session_of(request, api.settings.session)
        run = self.background.run(session, response_id)
        if after is not None and run is not None:
            if run.is_kept:
                await self._response(session, response_id)  # raises if it was deleted
            run.check_kept(after)
            return Stream(run.follow(after), api)
        response = await self._visible(session, response_id)
        if after is not None:
            words = "stream: true is for background responses whose events this proxy keeps. Use false"
            raise Problem(400, words, field="stream")
        return _json(response)

    async def cancel_response(self, api: ApiContext, request: Request, response_id: str) -> Response:
        """The response, cancelled; one that has ended stays as it is. Calls of tools that may not run twice
        continue, and their results are stored."""
        session = session_of(request, api.settings.session)
        response = await self._visible(session, response_id)
        if not response.get("background"):
            raise Problem(400, "Cannot cancel a synchronous response.", field="response_id")
        if response["status"] == "in_progress":
            await self.background.cancel(session, response_id)
            response = await self._visible(session, response_id)
        return _json(response)

    async def list_input_items(self, api: ApiContext, request: Request, response_id: str) -> Response:
        """The input items of the request, each with an id: newest first, or oldest first with `order=asc`. At most
        `limit` items (20; maximum 100), after the item `after`."""
        response = await self._response(session_of(request, api.settings.session), response_id)
        items = (response.document or {}).get(INPUT, [])
        return _json(input_page(items, response.contents, request.query_params.multi_items()))

    async def delete_response(self, api: ApiContext, request: Request, response_id: str) -> Response:
        """The response can no longer be shown or continued. Responses that already continue it stay complete. One
        that is being made in the background is cancelled first."""
        session = session_of(request, api.settings.session)
        if (await self._visible(session, response_id))["status"] == "in_progress":
            await self.background.cancel(session, response_id)  # otherwise its end is stored after the deletion
        await self._response(session, response_id)
        await self.store.delete_response(session, response_id)
        await self.store.sync()
        self.background.forget(session, response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    async def _read(self, api: ApiContext, caller: Caller, body: Any) -> tuple[ResponsesRequest, list[str]]:
        return await self.turns.read(caller.session, body, lenient=api.settings.lenient)

    async def _begin(
        self, api: ApiContext, caller: Caller, parsed: ResponsesRequest, handover: Handover, ignored: Sequence[str]
    ) -> Response:
        """Begin a background response. As in a stream, failures are events."""
        if api.draining or api.ending.is_set():
            raise ending_problem()
        headers = _headers(ignored)
        events = self.turns.events(caller, dataclasses.replace(parsed, stream=True), handover, api.ending)
        first = await anext(events)
        response = first[-1]["response"]
        if response["status"] != "in_progress":  # an earlier answer to this request, which did not reach the client
            if parsed.stream:
                return HandoverResponse(Stream(_framed(first, events), api, headers), handover)
            await events.aclose()
            return HandoverResponse(_json(response, headers), handover)
        run = Run(caller.session, parsed.previous_response_id, response)
        await self.background.begin(api, run, first, events, handover)
        return Stream(run.follow(), api, headers) if parsed.stream else _json(run.response, headers)

    async def _visible(self, session: str, response_id: str) -> Document:
        """The response in its present state. Raises Problem (404)."""
        for _ in range(2):  # it may end between the two reads
            run = self.background.run(session, response_id)
            with suppress(Problem):
                if run is None or run.over.is_set():
                    return without_input((await self._response(session, response_id)).document or {})
            if (found := await self.background.response(session, response_id)) is not None:
                return found
        raise _unknown(response_id)

    async def _response(self, session: str, response_id: str) -> Record:
        """Raises Problem (404)."""
        try:
            response: Record | None = await self.store.response(session, response_id)
        except UnknownResponse:
            response = None
        if response is None or (response.document or {}).get("object") != "response":
            raise _unknown(response_id)
        return response


def _unknown(response_id: str) -> Problem:
    return Problem(404, f"Response with id '{response_id}' not found.", field="response_id")


async def _answered(
    api: ApiContext,
    events: AsyncGenerator[Events],
    *,
    stream: bool,
    show: Callable[[Document], Document] = lambda response: response,
    ignored: Sequence[str] = (),
) -> Response:
    """`show`: converts the response to the body, unless it is streamed. `ignored`: the ignored members of the
    request."""
    headers = _headers(ignored)
    first = await anext(events)
    if stream:
        return Stream(_framed(first, events), api, headers)
    async for more in events:
        first = more or first
    return _json(show(first[-1]["response"]), headers)


async def _framed(first: Events, rest: AsyncGenerator[Events]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield b"".join(map(sse, first))
        async for events in rest:
            yield b"".join(map(sse, events)) or KEEP_ALIVE


def _json(document: Document, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(document), headers=headers, media_type="application/json")


def _headers(ignored: Sequence[str]) -> Mapping[str, str]:
    """The header with the ignored members, whose names may have any characters."""
    listed = ", ".join(quote(one, safe="[]._-")[:_LONGEST_NAME] for one in ignored)
    return {IGNORED: listed} if ignored else {}


def _events_after(request: Request) -> int | None:
    """The number of the last event that the client has; -1: none; None: it does not request events. Raises Problem
    (400)."""
    given = dict(request.query_params.multi_items())
    for name, value in request.query_params.multi_items():
        if name in ("include", "include[]") and value in INCLUDABLE:
            continue  # a stored response contains everything that its request included
        if name == "stream" and value in ("true", "false"):
            continue
        if name == "starting_after" and given.get("stream") == "true":
            if value.isascii() and value.isdecimal() and len(value) < _DIGITS:
                continue
            raise Problem(400, "starting_after: must be the sequence number of an event", field=name)
        if not (name == "include_obfuscation" and value == "false"):
            why = "is for stream=true" if name == "starting_after" else "unknown"
            raise Problem(400, f"{name}: {why}", field=name)
    return int(given.get("starting_after", -1)) if given.get("stream") == "true" else None
