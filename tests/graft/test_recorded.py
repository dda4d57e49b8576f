"""Every recorded exchange of a surface goes through the graft, in Gemini's form."""

import asyncio
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from addon.core.framing.documents import Document, Malformed, camel, decode, encode
from addon.core.framing.streams import ArrayDecoder, SseDecoder
from addon.graft.exchange import Forward
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.registry import match, wire_of
from store.factory import open_url
from tests.graft.captures import Stream
from tests.graft.conftest import EVENTS, JSON, Graft
from tests.recorded import RECORDED, at_least, exchanges

GRAFTED: Document = {"name": "toolgraft_probe", "description": "d"}
FRAMINGS = {"json": Framing.JSON, "sse": Framing.SSE, "json-array": Framing.ARRAY}
ASKED: Document = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
CONTENTS = ("contents", "tools", "toolConfig")


class Recorded(NamedTuple):
    name: str
    target: Target
    framing: Framing
    request: Document
    response: bytes


@lru_cache(maxsize=1)
def recordings() -> tuple[Recorded, ...]:
    return tuple(_read())


def _read() -> Iterator[Recorded]:
    for one in exchanges():
        url = urlsplit(one["url"] or "")
        host = url.hostname or ""
        target = match(one["method"] or "POST", host, f"{url.path}?{url.query}") if host else None
        if target is None or not wire_of(target).native or one["framing"] not in FRAMINGS:
            continue
        body = one["request_body"]
        if isinstance(body, dict) and body.keys() == {"type", "content"}:
            body = body["content"]
        if not isinstance(body, dict):  # the recording has the answer only
            body = {"request": ASKED} if target.request_path else ASKED
        says = (one["response_body"] or "").encode() if one["status"] == 200 else b""
        if says.startswith(b'{"type": "json", "content":'):
            says = encode(decode(says)["content"])
        yield Recorded(
            f"{one['id']} {one['source']}",
            target,
            FRAMINGS[one["framing"]],
            body,
            says,
        )


def inner(document: Document, target: Target) -> Document:
    """The request object, by camelCase names."""
    for key in target.request_path:
        document = document[key]
    found = {camel(key): value for key, value in document.items()}
    return inner(found["generateContentRequest"], target) if "generateContentRequest" in found else found


def outer(document: Document, target: Target) -> Document:
    return {k: v for k, v in document.items() if k not in target.request_path} if target.request_path else {}


def responses(one: Recorded, data: bytes) -> list[Document]:
    """The GenerateContentResponses of an answer."""
    if one.framing is Framing.JSON:
        parts: list[bytes | None] = [data]
    elif one.framing is Framing.SSE:
        sse = SseDecoder()
        parts = [event.data for event in [*sse.feed(data), *sse.flush()]]
    else:
        parts = [item.data for item in ArrayDecoder().feed(data)]
    found = []
    for part in parts:
        try:
            document: Any = decode(part or b"")
        except Malformed:
            continue
        for key in one.target.response_path:
            document = document.get(key) if isinstance(document, dict) else None
        if isinstance(document, dict):
            found.append(document)
    return found


def calls_in(one: Recorded, data: bytes) -> list[tuple[Any, Any, Any]]:
    """Name, args and id of every call of an answer whose arguments come whole."""
    return [
        (call.get("name"), call.get("args") or {}, call.get("id"))
        for response in responses(one, data)
        for candidate in response.get("candidates") or ()
        for part in (candidate.get("content") or {}).get("parts") or ()
        if isinstance(call := part.get("functionCall"), dict)
    ]


def in_pieces(data: bytes) -> bool:
    return b'"partialArgs"' in data or b'"willContinue"' in data


async def given(one: Recorded, graft: Graft, *, says: bytes) -> bytes:
    """What the client gets, where `graft` has a toolset."""
    outcome = await graft.request(encode(one.request), one.target)
    assert isinstance(outcome, Forward), one.name
    if outcome.exchange is None:
        return says
    if one.framing is Framing.JSON:
        return await graft.captured(outcome.exchange, says)
    capture = Stream(graft.grafter, outcome.exchange, EVENTS if one.framing is Framing.SSE else JSON)
    half = len(says) // 2
    return await capture.feed(says[:half]) + await capture.feed(says[half:]) + await capture.finish()


def test_there_are_recordings_of_every_kind() -> None:
    kinds = {(one.target.surface, one.framing.value) for one in recordings()}
    assert {("developer", "json"), ("developer", "sse"), ("developer", "array"), ("vertex", "sse")} <= kinds
    assert ("codeassist", "sse") in kinds
    assert len(recordings()) > at_least(50, 800)


async def each(check: Any, **policy: Any) -> None:
    """Every recording in a session of its own, all mistakes told together."""
    store = open_url("memory://", ttl=1e6)
    await store.open()
    graft = Graft(store)
    wrong: list[str] = []
    for one in recordings():
        await store.delete_session("default")
        try:
            await check(one, graft, **policy)
        except AssertionError as error:
            wrong.append(f"{one.name}: {str(error).splitlines()[:1]}")
    await store.close()
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])


def run(check: Any, **policy: Any) -> None:
    asyncio.run(each(check, **policy))


def _named(before: dict[str, Any], after: dict[str, Any], target: Target) -> set[str]:
    """A count of contents alone goes up in the form that counts tools, and that one names its model."""
    if target.operation is not Operation.COUNT or "model" in before or "model" not in after:
        return set()
    assert after["model"] == f"models/{target.model}"
    return {"model"}


def test_keep_changes_nothing_but_tools_and_tool_config() -> None:
    async def check(one: Recorded, graft: Graft) -> None:
        await graft.tools(GRAFTED, client_tools="keep")
        outcome = await graft.request(encode(one.request), one.target)
        assert isinstance(outcome, Forward)
        sent = decode(outcome.body)
        before, after = inner(one.request, one.target), inner(sent, one.target)
        assert outer(sent, one.target) == outer(one.request, one.target)
        for name in {*before, *after} - {"tools", "toolConfig"} - _named(before, after, one.target):
            assert before.get(name) == after.get(name), name
        own = _listed(before.get("tools"))
        assert _listed(after.get("tools"))[: len(own)] == own

    run(check)


def test_strip_changes_nothing_but_tools_tool_config_and_told_pairs() -> None:
    async def check(one: Recorded, graft: Graft) -> None:
        await graft.tools(GRAFTED)
        outcome = await graft.request(encode(one.request), one.target)
        assert isinstance(outcome, Forward)
        sent = decode(outcome.body)
        before, after = inner(one.request, one.target), inner(sent, one.target)
        assert outer(sent, one.target) == outer(one.request, one.target)
        for name in {*before, *after} - set(CONTENTS) - _named(before, after, one.target):
            assert before.get(name) == after.get(name), name
        if "cachedContent" in before:
            assert after == before
            return
        assert not any(kind in str(after.get("contents")) for kind in ("'functionCall'", "'function_call'"))
        plain = [c for c in _listed(before.get("contents")) if "unction" not in str(c) and "'tool" not in str(c)]
        written = _listed(after.get("contents"))
        assert all(content in written for content in plain)

    run(check)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def check_made_events(before: list[Document], after: list[Document]) -> None:
    """Every made event has a part, and none that is empty."""
    for event in after:
        if event not in before:
            for candidate in event["candidates"]:
                assert candidate["content"]["parts"], "no part"
                assert all(part for part in candidate["content"]["parts"]), "an empty part"


def passed(one: Recorded, visible: bytes) -> bool:
    """Whether an answer passed byte for byte; the blank line after its last event is added if it has none."""
    return visible == one.response or (one.framing is Framing.SSE and visible == one.response.rstrip() + b"\r\n\r\n")


@pytest.mark.parametrize("delivery", ["placeholder", "passthrough"])
def test_captured_calls_are_exactly_those_of_the_recording(delivery: str) -> None:
    counted = 0

    async def check(one: Recorded, graft: Graft, **policy: Any) -> None:
        nonlocal counted
        expected = calls_in(one, one.response)
        await graft.tools(*({"name": name} for name in dict.fromkeys(str(n) for n, _, _ in expected)), **policy)
        visible = await given(one, graft, says=one.response)
        outcome = await graft.request(encode(one.request), one.target)
        assert isinstance(outcome, Forward)
        if outcome.exchange is None:
            assert visible == one.response
            return
        if delivery == "passthrough":
            assert passed(one, visible)
        elif one.framing is not Framing.JSON:
            check_made_events(responses(one, one.response), responses(one, visible))
        if in_pieces(one.response):
            return
        captured = sorted((c.name, encode(c.args), c.gemini_id or "") for c in await graft.calls())
        assert captured == sorted((n, encode(a), i or "") for n, a, i in expected)
        counted += len(captured)
        if delivery == "placeholder":
            assert calls_in(one, visible) == []
            if not expected and one.target.operation is not Operation.CACHE:
                assert passed(one, visible)

    run(check, delivery=delivery)
    assert counted > at_least(18, 300)


ASSEMBLED = {"own": [("book", {"guest": "Ada", "nights": 2})]}

ASSEMBLED_IN_RECORDINGS = {
    "js-genai": [("customDivide", {"denominator": 2, "numerator": 100})],
    "no-args": [("read_theme", {}), *[("read_screen", {"id": screen}) for screen in "ABC"]],
    "tool-call-arguments": [("getWeather", {"location": place}) for place in ("Boston", "San Francisco")],
}


def test_partial_arguments_of_the_recordings_are_put_together() -> None:
    expected = ASSEMBLED | (ASSEMBLED_IN_RECORDINGS if RECORDED else {})

    async def check(one: Recorded, graft: Graft) -> None:
        if not in_pieces(one.response):
            return
        names = dict.fromkeys(name for name, _, _ in calls_in(one, one.response) if name)
        await graft.tools(*({"name": name} for name in names))
        await given(one, graft, says=one.response)
        calls = expected.pop(next(key for key in expected if key in one.name))
        assert [(c.name, c.args) for c in await graft.calls()] == calls

    run(check)
    assert not expected
