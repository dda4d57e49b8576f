"""`POST /v1/gemini`: requests in Gemini's form; the proxy stores the history."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from addon.core.answer import FILLER, Candidate
from addon.core.framing import streams
from addon.core.framing.documents import Document, as_list, camel, encode, get, index_of, objects, parts_of
from addon.core.framing.replies import text_answer
from addon.core.history.pairing import MissingResponses, Paired, UnknownResponses, pair
from addon.gateway.conversations import Conversation, conversation_name, new_response_id
from addon.gateway.engine import Caller, check_model, is_final
from addon.gateway.failures import NO_FINISH, TurnFailed, google_error
from addon.gateway.front_door import DoorRoute, FrontDoor
from addon.gateway.handover import Handover
from addon.gateway.streaming import Stream, answer_while_connected, ending_problem
from addon.web.api import ApiContext
from addon.web.problems import Problem

PATH = "/v1/gemini"
_ASKED = {"model": "gemini-3-flash", "input": "What is the weather in Tokyo?", "conversation": "trip"}


# --- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GeminiRequest:
    """`given`: the Contents of `input`. `more`: members that go upstream unchanged. `tools` None: the client gave
    none."""

    model: str
    given: list[Document]
    tools: list[Document] | None
    more: Document
    conversation: str | None
    previous: str | None
    stream: bool


_OBJECTS = ("toolConfig", "generationConfig")
_KNOWN = (
    "model",
    "input",
    "tools",
    "toolConfig",
    "systemInstruction",
    "generationConfig",
    "safetySettings",
    "conversation",
    "previousResponseId",
    "stream",
)


def read(document: Any) -> GeminiRequest:
    """Accepts both spellings of a key, as Gemini does. Raises Problem (400)."""
    if not isinstance(document, dict):
        raise Problem(400, "the body must be a JSON object")
    fields: Document = {}
    for key, value in document.items():
        name = camel(key)
        if name not in _KNOWN:
            raise _wrong(key, f"unknown; known fields: {', '.join(_KNOWN)}")
        if name in fields:
            raise _wrong(key, "given twice, in camelCase and snake_case: give one")
        fields[name] = value
    fields = {name: value for name, value in fields.items() if value is not None}
    stream, previous = fields.get("stream", False), fields.get("previousResponseId")
    if not isinstance(stream, bool):
        raise _wrong("stream", "must be true or false")
    if previous is not None and not isinstance(previous, str):
        raise _wrong("previousResponseId", "must be the responseId of an answer")
    return GeminiRequest(
        check_model(fields.get("model")),
        _contents(fields.get("input")),
        _tools(fields["tools"]) if "tools" in fields else None,
        _more(fields),
        conversation_name(fields.get("conversation")),
        previous,
        stream,
    )


def _more(fields: Mapping[str, Any]) -> Document:
    more: Document = {}
    for name in _OBJECTS:
        if name in fields:
            if not isinstance(fields[name], dict):
                raise _wrong(name, "must be an object")
            more[name] = fields[name]
    if (instruction := fields.get("systemInstruction")) is not None:
        if isinstance(instruction, str):
            instruction = {"parts": [{"text": instruction}]}
        if not isinstance(instruction, dict):
            raise _wrong("systemInstruction", "must be a text or a Content")
        more["systemInstruction"] = instruction
    if (safety := fields.get("safetySettings")) is not None:
        if not all(isinstance(one, dict) for one in as_list(safety)):
            raise _wrong("safetySettings", "must be a list of objects")
        more["safetySettings"] = safety
    return more


def _tools(value: Any) -> list[Document]:
    tools = as_list(value)
    if not all(isinstance(tool, dict) for tool in tools):
        raise _wrong("tools", 'must be a list of Tools, such as {"functionDeclarations": […]}')
    return tools


def _contents(value: Any) -> list[Document]:
    """A text, a Part, a Content, or a list of Parts (and texts) or of Contents."""
    if value is None:
        raise _wrong("input", "missing")
    items = as_list(value)
    if not items:
        raise _wrong("input", "must not be empty")
    if all(isinstance(item, dict) and "parts" in item for item in items):
        contents = [{**item, "parts": _parts(item["parts"], f"input[{n}].parts")} for n, item in enumerate(items)]
    else:
        contents = [{"role": "user", "parts": _parts(items, "input")}]
    for content in contents:
        for part in parts_of(content):
            _check_response(get(part, "functionResponse"))
    return contents


def _parts(value: Any, where: str) -> list[Document]:
    items = as_list(value)
    if not items:
        raise _wrong(where, "must hold at least one part")
    parts = [{"text": item} if isinstance(item, str) else item for item in items]
    for n, part in enumerate(parts):
        if not isinstance(part, dict) or not part:
            raise _wrong(f"{where}[{n}]", "must be a text or a Part")
        if "parts" in part:
            raise _wrong(f"{where}[{n}]", "is a Content in a list of Parts: give only Parts, or only Contents")
    return parts


def _check_response(response: Any) -> None:
    """A functionResponse that Gemini would refuse must not be stored: the conversation could not continue."""
    if response is None:
        return
    where = "functionResponse"
    if not isinstance(response, dict):
        raise _wrong(where, "must be an object")
    if not isinstance(response.get("response"), dict):
        raise _wrong(f"{where}.response", 'must be an object, such as {"result": 72}')
    if not any(isinstance(response.get(key), str) for key in ("id", "name")):
        raise _wrong(where, "must have the id of its call, or the name")


def _wrong(field: str, why: str) -> Problem:
    return Problem(400, f"{field}: {why}", field=field)


# --- routes -------------------------------------------------------------------------------------------------------


class GeminiRoutes(FrontDoor):
    def routes(self) -> list[BaseRoute]:
        words = "Ask Gemini, in its own form"
        return [DoorRoute("POST", PATH, self.ask, words, example=_ASKED, required=("model", "input"))]

    async def ask(self, api: ApiContext, request: Request) -> Response:
        """`input` is a text, Parts or Contents, including functionResponse parts. Answers contain functionCall parts.
        With `conversation` (or `previousResponseId`) the proxy stores the history; with `stream` the answer is SSE."""
        caller, body, handover = await self.receive(request, api, PATH)
        parsed = read(body)
        documents = self._documents(caller, parsed, handover)
        return await answer_while_connected(request, api, handover, lambda: self._answered(api, documents, parsed))

    async def _answered(self, api: ApiContext, documents: AsyncGenerator[Document], parsed: GeminiRequest) -> Response:
        first = await anext(documents)
        if parsed.stream:
            return Stream(_events(first, documents, api.ending), api)
        async for _ in documents:
            pass  # the generator must run to its end, after its only document
        return Response(encode(first), media_type="application/json; charset=UTF-8")

    async def _documents(self, caller: Caller, parsed: GeminiRequest, handover: Handover) -> AsyncGenerator[Document]:
        """The answer's documents. The response is stored before the document with the finishReason is sent."""
        async with self.conversations.alone(caller.session, parsed.conversation) as lock:
            if (earlier := await handover.earlier_answer()) is not None:
                await lock.release()
                yield earlier
                return
            conversation = await self.conversations.find(caller.session, parsed.conversation, parsed.previous)
            if conversation.added:
                words = (
                    "conversation: holds items of /v1/conversations that the model was not told of: ask /v1/responses"
                )
                raise Problem(400, words, field="conversation")
            paired = _paired(conversation, parsed)
            tools = conversation.settings.tools if parsed.tools is None else parsed.tools
            settings = conversation.settings._replace(tools=tools, one_by_one=None)
            response_id = new_response_id()

            async def keep(content: Document | None, answer: Document) -> None:
                contents = paired.added if content is None else [*paired.added, content]
                document = {"responseId": response_id}
                await self.conversations.add(
                    conversation,
                    response_id,
                    contents,
                    turn_id="" if content is None else handover.turn_id,
                    settings=settings,
                    calls=calls_of(content),
                    document=document,
                    answer=answer,
                    handover=handover,
                )

            if paired.owed:
                answer = owed_answer(paired.owed, parsed.model, response_id)
                await keep(None, answer)
                await lock.release()
                yield answer
                return
            request = {"contents": paired.contents, **parsed.more}
            if settings.tools is not None:
                request["tools"] = settings.tools
            collector, last = AnswerCollector(), list[Document]()
            async with self.engine.answer(
                caller, parsed.model, request, handover, turn_ids=conversation.turn_ids, stream=parsed.stream
            ) as documents:
                async for document in documents:
                    document = {**document, "responseId": response_id}
                    collector.take(document)
                    if collector.finished or not parsed.stream:
                        last.append(document)
                    else:
                        yield document
                if parsed.stream and not collector.finished:
                    raise TurnFailed(502, NO_FINISH)
                if collector.content is not None or collector.may_be_empty:
                    await keep(collector.content, merge_documents(collector.documents))
                await lock.release()
                for document in last:
                    yield document


async def _events(first: Document, rest: AsyncGenerator[Document], ending: asyncio.Event) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield streams.sse_event(encode(first))
        ended = is_final(first)
        try:
            async for document in rest:
                ended = ended or is_final(document)
                yield streams.sse_event(encode(document))
        except Exception as error:
            yield streams.sse_event(encode(google_error(error)[1]))
        except asyncio.CancelledError:
            if ended or not ending.is_set():
                raise
            yield streams.sse_event(encode(google_error(ending_problem())[1]))


def _paired(conversation: Conversation, parsed: GeminiRequest) -> Paired:
    """Raises Problem (400)."""
    try:
        return pair(conversation.contents, parsed.given)
    except UnknownResponses as error:
        named = ", ".join(repr(one.get("id") or one.get("name")) for one in error.responses)
        words = f"input: functionResponse for {named}, but the conversation has no open call with this id or name"
        raise Problem(400, words, field="input") from None
    except MissingResponses as error:
        calls = [get(part, "functionCall") for part in error.parts]
        named = ", ".join(
            f"{call.get('name')} ({call['id']})" if call.get("id") else str(call.get("name")) for call in calls
        )
        raise Problem(400, f"input: open calls need functionResponse parts first: {named}", field="input") from None


# --- answers -------------------------------------------------------------------------------------------------

_UNFILTERED = ("STOP", "MAX_TOKENS")


class AnswerCollector:
    """Takes all response documents of an answer. `finished`: the last one has arrived. `may_be_empty`: it ended
    without being filtered, so it counts as a turn even without parts."""

    def __init__(self) -> None:
        self.finished = False
        self.may_be_empty = False
        self.documents: list[Document] = []
        self._candidate = Candidate(0, "")
        self._has_parts = False

    def take(self, document: Document) -> None:
        self.documents.append(document)
        self.finished = self.finished or is_final(document)
        for candidate in objects(document.get("candidates")):
            if index_of(candidate):
                continue
            self.may_be_empty = self.may_be_empty or get(candidate, "finishReason") in _UNFILTERED
            content = candidate.get("content")
            for part in parts_of(content) if isinstance(content, dict) else ():
                self._candidate.add_true(part)
                self._has_parts = True

    @property
    def content(self) -> Document | None:
        """The model's Content; None if the answer has no part that a history can contain. If all parts are thoughts, a
        filler stands for them: the turn may have calls that the caller does not see."""
        parts = self._candidate.true_parts or ([FILLER] if self._has_parts and self.may_be_empty else [])
        return {"role": "model", "parts": parts} if parts else None


def merge_documents(documents: Sequence[Document]) -> Document:
    """Merges the response documents of a stream: parts are concatenated, other members have their last value."""
    if len(documents) == 1:
        return documents[0]
    whole: Document = {}
    candidates: dict[int, Document] = {}
    parts: dict[int, list[Document]] = {}
    for document in documents:
        whole |= document
        for one in objects(document.get("candidates")):
            index = index_of(one)
            candidates[index] = {**candidates.get(index, {}), **one}
            content = one.get("content")
            parts.setdefault(index, []).extend(parts_of(content) if isinstance(content, dict) else ())
    for index, candidate in candidates.items():
        if parts[index]:
            candidate["content"] = {"role": "model", "parts": parts[index]}
    return whole | ({"candidates": [candidates[index] for index in sorted(candidates)]} if candidates else {})


def owed_answer(parts: list[Document], model: str, response_id: str) -> Document:
    """A GenerateContentResponse with the calls that have no response yet, made without a request upstream."""
    answer = text_answer("", model.rpartition("/")[2], response_id)
    answer["candidates"][0]["content"]["parts"] = parts
    return answer


def calls_of(content: Document | None) -> dict[str, Document]:
    """The functionCall Parts of a Content by the model's ids. Calls without an id are left out."""
    calls: dict[str, Document] = {}
    for part in parts_of(content) if content is not None else ():
        call = get(part, "functionCall")
        if isinstance(call, dict) and isinstance(call_id := call.get("id"), str):
            calls[call_id] = part
    return calls
