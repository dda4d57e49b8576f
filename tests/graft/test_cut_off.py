"""Answers that only the end of their connection has ended: what was cut off never looks whole to a client."""

import re
from typing import Any

import pytest

from addon.core.framing.documents import Document, Malformed, decode, encode
from addon.graft.exchange import Reply
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing, Operation, Target
from store.models import Status
from tests.contents import call
from tests.graft.captures import ARRAY, ASKED, FRAMINGS, ID, PLACEHOLDER, Stream, framed, kind, read
from tests.graft.conftest import JSON, WEATHER, Graft, answer, target

pytestmark = pytest.mark.usefixtures("counted_ids")

CODE_ASSIST = target(Operation.STREAM, Framing.SSE, surface="codeassist")
REFUSED: Document = {"promptFeedback": {"blockReason": "SAFETY"}}
ERROR: Document = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
_TURN_ID = re.compile(rb"turn_\d+")
ANSWERS = {
    "text": [answer("a", finish=None), answer("b")],
    "a call": [answer("a", finish=None), answer(call(), finish=None), answer("")],
    "text behind a call": [answer(call(), finish=None), answer("b")],
}


async def begun(graft: Graft, to: Target, **tools: Any) -> Stream:
    await graft.tools(WEATHER, **tools)
    body = {"model": "gemini-3-flash", "request": ASKED} if to.response_path else ASKED
    return Stream(graft.grafter, await graft.exchange(body, to), kind(to), ends_with_connection=True)


@FRAMINGS
@pytest.mark.parametrize("events", ANSWERS.values(), ids=ANSWERS)
async def test_a_stream_is_whole_or_ends_with_an_error(events: list[Document], to: Target, graft: Graft) -> None:
    data = framed(to, events)
    expected = None
    for size in range(len(data), 0, -7):
        capture = await begun(graft, to)
        out = await capture.feed(data[:size]) + await capture.finish()
        await capture.runner.settle_handover(True)
        try:
            documents = read(to, _TURN_ID.sub(ID.encode(), out))
        except (Malformed, AssertionError):
            assert size < len(data)  # no client can read this
            continue
        if expected is None:
            expected = documents
            assert all("error" not in one for one in documents)
        is_whole = documents == expected
        assert is_whole != ("error" in documents[-1]), f"cut at {size}: {out!r}"
        assert is_whole or not any(one.get("finishReason") for e in documents for one in e.get("candidates", ()))
        assert all(turn.delivered == is_whole for turn in await graft.turns())
        await graft.store.delete_session("default")


async def test_the_calls_of_a_stream_that_was_cut_off_are_stored_and_there_is_no_placeholder(graft: Graft) -> None:
    capture = await begun(graft, CODE_ASSIST)
    out = await capture.feed(framed(CODE_ASSIST, [answer(call(), finish=None)])) + await capture.finish()
    assert b"the connection to the model ended" in out
    assert b"Tool call completed" not in out
    assert [one.status for one in await graft.calls()] == [Status.PENDING]


@FRAMINGS
@pytest.mark.parametrize("last", [REFUSED, ERROR], ids=["a refused prompt", "an error"])
async def test_an_end_of_another_kind_is_an_end(last: Document, to: Target, graft: Graft) -> None:
    capture = await begun(graft, to)
    data = framed(to, [last])
    assert await capture.feed(data) + await capture.finish() == data


@pytest.mark.parametrize("document", [answer("a"), answer(call()), answer("a", finish=None)], ids=str)
async def test_json_is_whole_or_an_error(document: Document, graft: Graft) -> None:
    data = encode(document)
    for size in [*range(0, len(data), 5), len(data)]:
        await graft.tools(WEATHER)
        exchange = await graft.exchange(ASKED)
        out = await Capture(graft.grafter, exchange, JSON, ends_with_connection=True).whole(data[:size])
        assert isinstance(out, Reply) == (size < len(data))
        assert not isinstance(out, Reply) or out.status == 502
    assert not isinstance(out, Reply)
    assert decode(out) in (document, answer(PLACEHOLDER))


async def test_an_array_that_is_closed_is_whole(graft: Graft) -> None:
    capture = await begun(graft, ARRAY)
    data = framed(ARRAY, [answer("a", finish=None)])
    assert await capture.feed(data) + await capture.finish() == data


@FRAMINGS
async def test_passthrough_tells_of_it_as_well(to: Target, graft: Graft) -> None:
    capture = await begun(graft, to, delivery="passthrough")
    event = answer("a", call(), finish=None)
    out = await capture.feed(framed(to, [event]).removesuffix(b"\n]")) + await capture.finish()
    first, last = read(to, out)
    assert first == event
    assert "error" in last
