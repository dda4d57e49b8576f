"""An answer that holds a call where the service never puts one shows no call of a grafted tool, in any API: some client
may look for it there."""

from collections.abc import AsyncIterator

import pytest

from addon.core.framing.documents import Document, encode
from addon.graft.exchange import Exchange, Reply
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing, Target
from addon.surfaces.registry import match
from store.factory import open_url
from tests.graft.captures import Stream
from tests.graft.conftest import EVENTS, JSON, Graft

_HOST = "generativelanguage.googleapis.com"
_NAMED = {"id": "c", "name": "hidden", "arguments": {}}
_STEP = {"type": "function_call", **_NAMED}
_START = {"event_type": "step.start", "index": 1, "step": _STEP}
_SEARCH = {"type": "google_search_call", "id": "s"}
_PART = {"functionCall": {"name": "hidden", "args": {}}}
_OWN_PART: Document = {"functionCall": {"name": "own", "args": {}}}
_BOTH = {**_OWN_PART, "function_call": _PART["functionCall"]}
_CANDIDATE = {"content": {"role": "model", "parts": [_PART]}, "finishReason": "STOP"}
_ENTRY = {"index": 0, "id": "c", "type": "function", "function": {"name": "hidden", "arguments": "{}"}}
_OWN_ENTRY = {**_ENTRY, "function": {"name": "own", "arguments": "{"}}


def _stop(index: int) -> Document:
    return {"event_type": "step.stop", "index": index}


def _choices(**choice: object) -> Document:
    return {"choices": [{"index": 0, **choice}]}


def _message(**message: object) -> Document:
    return {"role": "assistant", "content": "a", **message}


_GEMINI: dict[str, list[object]] = {
    "a list of answers": [[{"candidates": [_CANDIDATE]}]],
    "an envelope that nobody asked for": [{"response": {"candidates": [_CANDIDATE]}}],
    "an error with an answer in it": [{"error": {"code": 500, "details": [{"candidates": [_CANDIDATE]}]}}],
    "both spellings": [{"candidates": [{"content": {"parts": [_BOTH]}}]}],
    "lists of lists": [{"candidates": [[_CANDIDATE]]}],
    "a list of contents": [{"candidates": [{"content": [_CANDIDATE["content"]]}]}],
    "beside the content": [{"candidates": [{**_PART, "content": {"parts": [{"text": "a"}]}}]}],
    "lists of parts": [{"candidates": [{"content": {"parts": [[_PART]]}}]}],
    "a list of calls": [{"candidates": [{"content": {"parts": [{"functionCall": [_PART["functionCall"]]}]}}]}],
}
_CHAT: dict[str, list[object]] = {
    "choices that are no list": [{"choices": {"index": 0, "delta": _message(tool_calls=[_ENTRY])}}],
    "a message beside the delta": [_choices(message=_message(), delta=_message(tool_calls=[_ENTRY]))],
    "a delta beside the message": [_choices(message=_message(tool_calls=[_ENTRY]), delta=_message())],
    "lists of entries": [_choices(delta=_message(tool_calls=[[_ENTRY]]), message=_message(tool_calls=[[_ENTRY]]))],
    "the older form": [_choices(delta=_message(function_call=_NAMED), message=_message(function_call=_NAMED))],
    "beside the delta": [_choices(delta=_message(), message=_message(), tool_calls=[_ENTRY])],
    "an error with an answer in it": [{"error": {"message": _choices(delta=_message(tool_calls=[_ENTRY]))}}],
    "a name that changes": [
        _choices(delta=_message(tool_calls=[_OWN_ENTRY])),
        _choices(delta={"tool_calls": [{**_ENTRY, "function": {"name": "hidden", "arguments": "}"}}]}),
    ],
}
_INTERACTION: dict[str, list[object]] = {
    "another step's place": [{**_START, "step": _SEARCH}, _START, _stop(1)],
    "the place of a call of the client's own": [{**_START, "step": {**_STEP, "name": "own"}}, _START, _stop(1)],
    "a name that changes": [_START, {"event_type": "step.delta", "index": 1, "delta": {"name": "own"}}, _stop(1)],
    "a list of steps": [{**_START, "step": [_STEP]}],
    "a delta": [{"event_type": "step.delta", "index": 1, "delta": _STEP}],
    "a content": [{**_START, "step": {"type": "model_output", "content": [_STEP]}}],
    "another event": [{"event_type": "content.start", "index": 1, "content": _STEP}],
    "the first event": [{"event_type": "interaction.created", "interaction": {"id": "i", "steps": [_STEP]}}],
    "the last event": [
        {"event_type": "interaction.completed", "interaction": {"id": "i", "status": "completed", "steps": [_STEP]}}
    ],
    "an event without a type": [{"index": 1, "step": _STEP}],
    "an answer in a stream": [{"id": "i", "status": "completed", "output": [_STEP]}],
    "an error with an answer in it": [{"error": {"code": "x", "details": [_STEP]}}],
}
_ASKED: list[tuple[str, Document, dict[str, list[object]]]] = [
    ("/v1beta/models/m:streamGenerateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}, _GEMINI),
    ("/v1beta/openai/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, _CHAT),
    ("/v1beta/interactions", {"model": "m", "input": "hi"}, _INTERACTION),
]
_CASES = [
    pytest.param(path, body, documents, framing, id=f"{path.rpartition('/')[2]}: {name}, {framing.name}")
    for path, body, odd in _ASKED
    for name, documents in odd.items()
    for framing in (Framing.SSE, Framing.ARRAY, Framing.JSON)
    if framing is not Framing.ARRAY or odd is _GEMINI
    if framing is not Framing.JSON or len(documents) == 1
]


@pytest.fixture
async def graft() -> AsyncIterator[Graft]:
    store = open_url("memory://", ttl=1e6)
    await store.open()
    yield Graft(store)
    await store.close()


async def _exchange(graft: Graft, path: str, body: Document, framing: Framing) -> Exchange:
    if framing is Framing.JSON:
        path = path.replace("streamG", "g")
    elif path.endswith("Content"):
        path += "?alt=sse" if framing is Framing.SSE else ""
    else:
        body = {**body, "stream": True}
    target: Target | None = match("POST", _HOST, path)
    await graft.tools({"name": "hidden"}, delivery="placeholder", client_tools="keep")
    return await graft.exchange(body, target)


async def _visible(graft: Graft, exchange: Exchange, documents: list[object], framing: Framing) -> bytes:
    written = [encode(one) for one in documents]
    if framing is Framing.JSON:
        visible = await Capture(graft.grafter, exchange, JSON).whole(written[0])
        return visible.body if isinstance(visible, Reply) else visible
    if framing is Framing.SSE:
        capture, data = Stream(graft.grafter, exchange, EVENTS), b"".join(b"data: %b\n\n" % one for one in written)
    else:
        capture, data = Stream(graft.grafter, exchange, JSON), b"[%b]" % b",\r\n".join(written)
    return await capture.feed(data) + await capture.finish()


@pytest.mark.parametrize(("path", "body", "documents", "framing"), _CASES)
async def test_no_call_is_shown_wherever_it_stands(
    path: str, body: Document, documents: list[object], framing: Framing, graft: Graft
) -> None:
    exchange = await _exchange(graft, path, body, framing)
    assert b'"hidden"' not in await _visible(graft, exchange, documents, framing)
