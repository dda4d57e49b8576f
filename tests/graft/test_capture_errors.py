"""What the client gets if the upstream, the store or the capture itself fails within an answer."""

import itertools
from typing import Any

import pytest

from addon.core.answer import AnswerRewriter
from addon.core.framing import streams
from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Reply
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing, Operation, Target
from store.base import Store, StoreUnavailable
from store.models import Status
from tests.contents import call, model, user
from tests.graft.captures import (
    ARRAY,
    ASKED,
    FRAMINGS,
    OWN,
    PLACEHOLDER,
    STREAM,
    Stream,
    framed,
    kind,
    paused,
    read,
    stream,
    streamed,
    texts,
    whole,
)
from tests.graft.conftest import EVENTS, JSON, WEATHER, Graft, answer, target

pytestmark = pytest.mark.usefixtures("counted_ids")


# --- errors in a stream ------------------------------------------------------------------------------------------

ERROR: Document = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}


@FRAMINGS
@pytest.mark.parametrize("policy", ["placeholder", "passthrough"])
async def test_a_stream_that_ends_in_an_error_stays_cut(graft: Graft, to: Target, policy: str) -> None:
    await graft.tools(WEATHER, delivery=policy)
    document = answer("a", call(), finish=None)
    answered = read(to, await stream(graft, [document, ERROR], to))
    assert answered == [document if policy == "passthrough" else answer("a", finish=None), ERROR]
    (turn,) = await graft.turns()
    assert not turn.delivered
    assert [c.status for c in await graft.calls()] == [Status.PENDING]
    history = {"contents": [user("hi"), model("a"), user("?")]}
    assert await graft.contents(history["contents"]) == history["contents"], "found by what the client sees of it"


@pytest.mark.parametrize("error", [ERROR, [ERROR]], ids=["bare", "in a list"])
async def test_an_error_outside_the_envelope_cuts_the_stream_too(graft: Graft, error: Any) -> None:
    await graft.tools(WEATHER)
    to = target(Operation.STREAM, Framing.SSE, surface="codeassist")
    exchange = await graft.exchange({"model": "gemini-3-flash", "request": ASKED}, to)
    capture = Stream(graft.grafter, exchange, EVENTS)
    end = streams.sse_event(encode(error))
    assert await capture.feed(framed(to, [answer(call(), finish=None)]) + end) + await capture.finish() == end
    assert not (await graft.turns())[0].delivered


# --- what nobody foresaw -----------------------------------------------------------------------------------------


def mistaken(monkeypatch: pytest.MonkeyPatch, name: str, of: type = AnswerRewriter) -> None:
    def mistake(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(of, name, mistake)


@FRAMINGS
@pytest.mark.parametrize("where", ["feed", "close", "decoder"])
async def test_a_mistake_ends_a_stream_with_an_error_and_leaks_no_call(
    graft: Graft, monkeypatch: pytest.MonkeyPatch, to: Target, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    await graft.tools(WEATHER)
    capture = Stream(graft.grafter, await graft.exchange(ASKED, to), kind(to))
    if where == "decoder":
        mistaken(monkeypatch, "feed", type(capture.runner.machine.reading.decoder))
    else:
        mistaken(monkeypatch, where)
    data = framed(to, [answer(call(), finish=None)])
    out = b"".join([await capture.feed(piece) for piece in (data[:20], data[20:], None, data)])
    assert b"functionCall" not in out
    assert out.count(b'"INTERNAL"') == 1
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert b'toolgraft_errors_total{kind="graft"} 1.0' in graft.grafter.metrics.render()
    assert b'kind="store"' not in graft.grafter.metrics.render()


@FRAMINGS
@pytest.mark.parametrize("policy", ["fail", "pass"])
async def test_after_a_mistake_the_rest_passes_unchanged_but_never_a_call(
    store: Store, monkeypatch: pytest.MonkeyPatch, to: Target, policy: str
) -> None:
    graft = Graft(store, on_store_error=policy)
    await graft.tools(WEATHER)
    mistaken(monkeypatch, "feed")
    odd = answer("a", finish=None, continuationToken="makes it looked at")
    answered = read(to, await stream(graft, [odd, answer(call(), finish=None), answer("")], to))
    assert answered[0] == odd
    assert [one["error"]["status"] for one in answered[1:]] == ["INTERNAL"]


async def test_a_mistake_under_a_whole_answer_is_an_error(graft: Graft, monkeypatch: pytest.MonkeyPatch) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange(ASKED)
    mistaken(monkeypatch, "feed")
    out = await Capture(graft.grafter, exchange, JSON).whole(encode(answer(call())))
    assert isinstance(out, Reply)
    assert (out.status, decode(out.body)["error"]["status"]) == (500, "INTERNAL")


# --- a store that fails ------------------------------------------------------------------------------------------


def failing(graft: Graft, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    save, left = graft.store.save_turn, itertools.count(after, -1)

    async def save_turn(*args: Any, **kwargs: Any) -> None:
        if next(left) <= 0:
            raise StoreUnavailable("disk full")
        await save(*args, **kwargs)

    monkeypatch.setattr(graft.store, "save_turn", save_turn)


@FRAMINGS
@pytest.mark.parametrize("lead", [[], [answer("a", finish=None)]], ids=["first", "later"])
async def test_a_store_that_fails_in_a_stream_ends_it_with_an_error(
    graft: Graft, monkeypatch: pytest.MonkeyPatch, to: Target, lead: list[Document]
) -> None:
    await graft.tools(WEATHER)
    failing(graft, monkeypatch)
    answered = read(to, await stream(graft, [*lead, answer(call(), finish=None), answer("")], to))
    assert answered[: len(lead)] == lead
    assert len(answered) == len(lead) + 1
    assert answered[-1]["error"]["status"] == "UNAVAILABLE"
    assert "the store does not answer" in answered[-1]["error"]["message"]


@FRAMINGS
async def test_with_the_pass_policy_an_answer_goes_on_and_shows_no_call(
    store: Store, monkeypatch: pytest.MonkeyPatch, to: Target
) -> None:
    graft = Graft(store, on_store_error="pass")
    await graft.tools(WEATHER, client_tools="keep")
    failing(graft, monkeypatch)
    events = [answer("a", finish=None), answer(call(), finish=None), answer("b", finish=None), answer("")]
    assert texts(await streamed(graft, events, to)) == f"ab\n\n{PLACEHOLDER}"
    events = [answer(call(), finish=None), answer(call("own"), finish=None), answer("")]
    mixed = await streamed(graft, events, to, tools=[OWN])
    assert mixed == [answer(call("own"), finish=None), answer("")], "the client's own are its own"
    assert texts([await whole(graft, answer("a", call()))]).startswith("a\n\nTool call completed")
    assert await graft.turns() == []


async def test_a_store_that_fails_under_a_whole_answer_is_a_503(graft: Graft, monkeypatch: pytest.MonkeyPatch) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange(ASKED)
    failing(graft, monkeypatch)
    out = await Capture(graft.grafter, exchange, JSON).whole(encode(answer(call())))
    assert isinstance(out, Reply)
    assert (out.status, decode(out.body)["error"]["status"]) == (503, "UNAVAILABLE")


async def test_a_store_that_fails_at_the_end_is_told_after_what_was_said(
    graft: Graft, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    failing(graft, monkeypatch, after=1)
    answered = read(STREAM, await stream(graft, [answer(call(), finish=None)]))
    assert [list(event) for event in answered] == [["error"]]


async def test_a_store_that_fails_at_the_end_of_an_array_leaves_a_good_array(
    graft: Graft, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    failing(graft, monkeypatch, after=1)
    answered = read(ARRAY, await stream(graft, [answer(call(), finish=None)], ARRAY))
    assert [list(event) for event in answered] == [["error"]]


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_with_the_pass_policy_an_array_stays_one_wherever_the_store_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    graft = Graft(store, on_store_error="pass")
    await graft.tools(WEATHER)
    failing(graft, monkeypatch, after=after)
    read(ARRAY, await stream(graft, [answer(call(), finish=None), answer(call(), finish=None)], ARRAY))


async def test_every_captured_call_is_counted_once(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await streamed(graft, [answer(call(), finish=None), answer(call(), finish=None), answer("")])
    await whole(graft, paused(call()))
    await whole(graft, answer(call()), continuationToken="t1")
    assert b'toolgraft_calls_total{outcome="captured"} 4.0' in graft.grafter.metrics.render()
