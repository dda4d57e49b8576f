"""`/v1/responses`: the OpenAI Responses API. `core.dialects.responses` converts; this module stores and answers."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from addon.core.dialects.responses import (
    Invalid,
    ResponsesRequest,
    Translator,
    events_of,
    function_tools,
    input_page,
    read_request,
    sse,
    stored_items,
)
from addon.core.framing.documents import Document, encode
from addon.core.history.pairing import join_responses
from addon.core.tools.tool_plan import declared_names
from addon.gateway.answers import is_final
from addon.gateway.callers import session_of
from addon.gateway.conversations import Conversation, ConversationSettings, new_response_id
from addon.gateway.describe import IN_OPENAI_S_WORDS, RESPONSES_BODY, UPSTREAM, parameters
from addon.gateway.failures import NO_FINISH, TurnFailed, google_error, in_openai_s_words, openai_error
from addon.gateway.front_door import FrontDoor
from addon.gateway.handover import Handover
from addon.gateway.recall import stored_calls
from addon.gateway.streaming import Stream, answer_while_connected, ending_problem
from addon.gateway.upstream_factory import Caller
from addon.web.access import needs
from addon.web.describe import Group, answers, body_example
from addon.web.problems import Problem
from addon.web.routing import ApiContext, ApiDep
from store.base import UnknownResponse
from store.models import Response as Record

PATH = "/v1/responses"
_INPUT = "input"  # the member of a stored Response object that contains the request's input
_KEEP_ALIVE = b": keep-alive\n\n"

type Events = list[Document]

_ASKED = {
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
_ANSWER = {
    "id": "resp_5d0c2f",
    "object": "response",
    "status": "completed",
    "model": "gemini-3-flash",
    "output": [
        {
            "type": "function_call",
            "id": "fc_1b6a",
            "call_id": "call_77e0",
            "name": "get_weather",
            "arguments": '{"city":"Tokyo"}',
            "status": "completed",
        }
    ],
}
_LISTED = {
    "object": "list",
    "data": [
        {
            "id": "msg_90cc",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": "What is the weather in Tokyo?"}],
        }
    ],
    "first_id": "msg_90cc",
    "last_id": "msg_90cc",
    "has_more": False,
}
_LIST: dict[str, Document] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string", "description": "An item's id."},
}
_NONE = "No such response"
_DELETED = {"id": "resp_5d0c2f", "object": "response", "deleted": True}


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request in progress. `request`: the Gemini request. `contents`: added to the history before the answer.
    `owed`: calls that still have no output, by their ids; if there are any, nothing is sent to Gemini. `step`: all
    calls of their step, if the request contains the step."""

    conversation: Conversation
    parsed: ResponsesRequest
    settings: ConversationSettings
    request: Document
    contents: list[Document]
    owed: dict[str, Document]
    step: dict[str, Document]
    translator: Translator
    handover: Handover


class _NotStored(Exception):
    """A response could not be stored: the stream ends with these events."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events


class ResponsesRoutes(FrontDoor):
    def router(self) -> Group:
        router = Group("front doors")

        @router.post(
            PATH,
            summary="Ask Gemini as OpenAI's Responses API",
            responses=answers(_ANSWER, refused=IN_OPENAI_S_WORDS, **UPSTREAM),
            openapi_extra=body_example(_ASKED, RESPONSES_BODY) | parameters(key=True),
        )
        @needs("ask")
        async def create_response(api: ApiDep, request: Request) -> Response:
            """A request of an OpenAI client, streamed or not. Calls of the client's own functions are returned as
            `function_call` items; the proxy runs the session's tools."""
            try:
                caller, parsed, handover = await self.receive(request, api, PATH, read_request)
            except Invalid as error:
                return in_openai_s_words(error)
            events = self._events(caller, parsed, handover, api.ending)
            return await answer_while_connected(
                request, api, handover, lambda: _answered(api, events, stream=parsed.stream)
            )

        @router.get(
            f"{PATH}/{{response_id}}",
            summary="Show a response again",
            responses=answers(_ANSWER, refused=IN_OPENAI_S_WORDS, p404=_NONE),
            openapi_extra=parameters(),
        )
        @needs("ask")
        async def show_response(api: ApiDep, request: Request, response_id: str) -> Response:
            _check_query(request)
            session = session_of(request, api.settings.session)
            response = await self._response(session, response_id)
            return _json({name: value for name, value in (response.document or {}).items() if name != _INPUT})

        @router.get(
            f"{PATH}/{{response_id}}/input_items",
            summary="List its input",
            responses=answers(_LISTED, refused=IN_OPENAI_S_WORDS, p404=_NONE),
            openapi_extra=parameters(_LIST),
        )
        @needs("ask")
        async def list_input_items(api: ApiDep, request: Request, response_id: str) -> Response:
            """The input items of the request, each with an id: newest first, or oldest first with `order=asc`. At most
            `limit` items (20; maximum 100), after the item `after`."""
            response = await self._response(session_of(request, api.settings.session), response_id)
            items = (response.document or {}).get(_INPUT, [])
            try:
                return _json(input_page(items, response.contents, request.query_params.multi_items()))
            except Invalid as error:
                return in_openai_s_words(error)

        @router.delete(
            f"{PATH}/{{response_id}}",
            summary="Delete a response",
            responses=answers(_DELETED, refused=IN_OPENAI_S_WORDS, p404=_NONE),
            openapi_extra=parameters(),
        )
        @needs("ask")
        async def delete_response(api: ApiDep, request: Request, response_id: str) -> Response:
            """The response can no longer be shown or continued. Responses that already continue it stay complete."""
            session = session_of(request, api.settings.session)
            await self._response(session, response_id)
            await self.store.delete_response(session, response_id)
            await self.store.sync()
            return _json({"id": response_id, "object": "response", "deleted": True})

        return router

    async def _response(self, session: str, response_id: str) -> Record:
        """Raises Problem (404)."""
        try:
            response: Record | None = await self.store.response(session, response_id)
        except UnknownResponse:
            response = None
        if response is None or (response.document or {}).get("object") != "response":
            raise Problem(404, f"Response with id '{response_id}' not found.", field="response_id")
        return response

    async def _events(
        self, caller: Caller, parsed: ResponsesRequest, handover: Handover, ending: asyncio.Event
    ) -> AsyncGenerator[Events]:
        """The events of a response. The first comes when the request was accepted. The response is stored before the
        last event, which contains the whole response. Without a stream, failures are raised (TurnFailed)."""
        with self.conversations.alone(caller.session, parsed.conversation):
            if (earlier := await handover.earlier_answer()) is not None:
                yield events_of(earlier)
                return
            conversation = await self.conversations.find(
                caller.session, parsed.conversation, parsed.previous_response_id
            )
            turn = await self._turn(conversation, parsed, handover)
            yield turn.translator.start()
            finished = not parsed.stream
            try:
                if turn.owed:
                    yield [*turn.translator.repeat_calls(turn.owed), *await self._end(turn)]
                    return
                async with self.engine.answer(
                    caller,
                    parsed.model,
                    turn.request,
                    handover,
                    turn_ids=conversation.turn_ids,
                    stream=parsed.stream,
                ) as documents:
                    async for document in documents:
                        finished = finished or is_final(document)
                        yield turn.translator.feed(document)
                    if not finished:
                        raise TurnFailed(502, NO_FINISH)
                    yield await self._end(turn)
            except _NotStored as error:
                yield error.events
            except Exception as error:
                if not parsed.stream:
                    raise
                yield turn.translator.fail(*google_error(error))
            except asyncio.CancelledError:
                if not (parsed.stream and ending.is_set() and turn.translator.status == "in_progress"):
                    raise
                yield turn.translator.fail(*google_error(ending_problem()))

    async def _turn(self, conversation: Conversation, parsed: ResponsesRequest, handover: Handover) -> _Turn:
        """Raises Invalid."""
        past = await stored_calls(self.store, conversation, parsed)
        added = parsed.add_to(past)
        one_by_one = parsed.parallel is False
        if added.missing and parsed.parallel is None:
            one_by_one = bool(conversation.settings.one_by_one or past.step)
        settings = ConversationSettings(
            conversation.settings.tools if parsed.declarations is None else _tools(parsed.declarations),
            [*(conversation.settings.system or ()), *parsed.input.system] or None,
            one_by_one or None,
        )
        declared = [one for tool in settings.tools or () for one in tool.get("functionDeclarations", ())]
        names = [name for tool in settings.tools or () for name in declared_names(tool)]
        request: Document = {"contents": join_responses([*conversation.contents, *added.contents])}
        members = {
            "tools": settings.tools,
            "toolConfig": parsed.tool_config(names),
            "systemInstruction": parsed.system_instruction(conversation.settings.system or ()),
            "generationConfig": parsed.generation_config or None,
        }
        translator = Translator(
            parsed,
            new_response_id(),
            new_id=_new_id,
            now=self.store.clock,
            tools=function_tools(declared) if parsed.declarations is None and declared else None,
            one_by_one=one_by_one,
        )
        return _Turn(
            conversation,
            parsed,
            settings,
            request | {name: value for name, value in members.items() if value is not None},
            added.contents,
            {call_id: past.calls[call_id] for call_id in added.missing},
            dict(past.step),
            translator,
            handover,
        )

    async def _end(self, turn: _Turn) -> Events:
        """Store the response and return the last events. Raises _NotStored, for a stream."""
        translator = turn.translator
        events = translator.end()
        try:
            await self._keep(turn)
        except Exception as error:
            if not turn.parsed.stream:
                raise
            body = openai_error(error)[1]["error"]
            number = events[0]["sequence_number"]
            last = {"type": "error", "sequence_number": number, **{k: body[k] for k in ("code", "message", "param")}}
            raise _NotStored([last]) from error
        return events

    async def _keep(self, turn: _Turn) -> None:
        translator, parsed, conversation = turn.translator, turn.parsed, turn.conversation
        content = translator.content
        if translator.status == "failed" or (content is None and not turn.owed and translator.is_filtered):
            return
        answer = translator.document()
        document: Document | None = None
        calls = turn.step if turn.owed else translator.calls
        contents = turn.contents if content is None else [*turn.contents, content]
        if not parsed.store:
            if parsed.conversation is None:
                if turn.owed or not calls:
                    return
                # the client keeps its own history: store only the calls, for their signatures
                conversation, contents = Conversation(conversation.session), []
        else:
            document = answer | {_INPUT: stored_items(parsed.raw_input, turn.contents, _new_id)}
        await self.conversations.add(
            conversation,
            answer["id"],
            contents,
            turn_id="" if content is None else turn.handover.turn_id,
            settings=turn.settings,
            calls=calls,
            document=document,
            answer=answer,
            handover=turn.handover,
        )


async def _answered(api: ApiContext, events: AsyncGenerator[Events], *, stream: bool) -> Response:
    try:
        first = await anext(events)
    except Invalid as error:
        return in_openai_s_words(error)
    if stream:
        return Stream(_framed(first, events), api)
    try:
        async for more in events:
            first = more or first
    except TurnFailed as error:
        return in_openai_s_words(error)
    return _json(first[-1]["response"])


async def _framed(first: Events, rest: AsyncGenerator[Events]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield b"".join(map(sse, first))
        async for events in rest:
            yield b"".join(map(sse, events)) or _KEEP_ALIVE


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"


def _tools(declarations: list[Document]) -> list[Document]:
    return [{"functionDeclarations": declarations}] if declarations else []


def _check_query(request: Request) -> None:
    """Raises Problem (400)."""
    for name, value in request.query_params.items():
        if not (name in ("stream", "include_obfuscation") and value == "false"):
            why = (
                "true is not supported: a complete response is not streamed again. Use false"
                if name == "stream"
                else "unknown"
            )
            raise Problem(400, f"{name}: {why}", field=name)


def _json(document: Document) -> Response:
    return Response(encode(document), media_type="application/json")
