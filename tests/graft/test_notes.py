"""Answers without calls are noted, however they come, so that no turn is taken for one that hides something."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from addon.core.framing import streams
from addon.core.framing.documents import Document, encode
from addon.core.history.visible import visible_digest
from addon.graft.exchange import Forward
from addon.graft.machine_shell import Capture, note_answer
from addon.graft.turn_records import note_of
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.registry import match_path
from store.base import Store, StoreUnavailable
from tests.contents import call, model, response, user
from tests.graft.captures import Stream
from tests.graft.conftest import EVENTS, JSON, WEATHER, Graft, answer, target

STREAM = target(Operation.STREAM, Framing.SSE)
ARRAY = target(Operation.STREAM, Framing.ARRAY)
WRAPPED = target(Operation.STREAM, Framing.SSE, surface="codeassist")
ASKED: Document = {"contents": [user("hi")]}


class Noted:
    """The keys that were noted."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[tuple[list[bytes], bytes]] = []
        save_plain = store.save_plain

        async def noting(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
            assert session == "default"
            self.notes.append((list(keys), chain))
            await save_plain(session, keys, chain)

        monkeypatch.setattr(store, "save_plain", noting)


@pytest.fixture
def noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(store, monkeypatch)


def body_of(to: Target, asked: Document = ASKED) -> Document:
    return {"model": "m", "project": "p", "request": asked} if to.request_path else asked


async def expected(graft: Graft, *parts: Document, to: Target = STREAM, **more: Any) -> tuple[list[bytes], bytes]:
    exchange = await graft.exchange(body_of(to, {**ASKED, **more}), to)
    return note_of(exchange, visible_digest(parts), parts)


def framed(to: Target, documents: Sequence[Document]) -> list[bytes]:
    frames = [encode({"response": one} if to.response_path else one) for one in documents]
    if to.framing is Framing.SSE:
        return [streams.sse_event(one) for one in frames]
    return [b"[" + b",".join(frames) + b"]"]


SAID = [answer("We", finish=None), answer("ll, ", finish=None), answer("no.")]


@pytest.mark.parametrize("to", [STREAM, ARRAY, WRAPPED], ids=["events", "array", "envelope"])
async def test_a_stream_is_noted_before_its_end_goes_out(graft: Graft, noted: Noted, to: Target) -> None:
    await graft.tools(WEATHER)
    capture = Stream(
        graft.grafter, await graft.exchange(body_of(to), to), EVENTS if to.framing is Framing.SSE else JSON
    )
    *begun, end = framed(to, SAID)
    for chunk in begun:
        await capture.feed(chunk)
    assert noted.notes == []
    await capture.feed(end)
    assert noted.notes == [await expected(graft, {"text": "Well, no."}, to=to)]
    await capture.finish()
    assert len(noted.notes) == 1


async def test_a_stream_is_noted_wherever_it_is_cut_up(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    data = b"".join(framed(STREAM, SAID))
    for size in (1, 7, 100):
        capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
        out = [await capture.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert b"".join([*out, await capture.finish()]) == data
    assert noted.notes == [await expected(graft, {"text": "Well, no."})] * 3


async def test_parts_after_a_finish_reason_are_noted_too(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    for chunk in framed(STREAM, [answer("a"), answer("b"), answer("c", finish=None)]):
        await capture.feed(chunk)
    await capture.finish()
    assert noted.notes == [await expected(graft, {"text": text}) for text in ("a", "abc")]


async def test_a_stream_that_ends_without_a_finish_reason_is_noted(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    for chunk in framed(STREAM, SAID[:2]):
        await capture.feed(chunk)
    await capture.finish()
    assert noted.notes[0] == await expected(graft, {"text": "Well,"})


async def test_a_whole_answer_is_noted_by_each_of_its_candidates(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    says = answer("one")
    says["candidates"].append({**answer({"text": "two", "thoughtSignature": "c2ln"})["candidates"][0], "index": 1})
    assert await Capture(graft.grafter, await graft.exchange(ASKED), JSON).whole(encode(says)) == encode(says)
    two = {"text": "two", "thoughtSignature": "c2ln"}
    assert noted.notes == [await expected(graft, {"text": "one"}), await expected(graft, two)]
    assert len(noted.notes[1][0]) == len(noted.notes[0][0]) + 1, "its signature is noted as well"


async def test_calls_of_the_clients_own_are_noted_and_grafted_ones_are_not(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own = [{"functionDeclarations": [{"name": "own"}]}]
    for part, count in ((call("own", id="x1"), 1), (call(), 1)):
        capture = Capture(graft.grafter, await graft.exchange({**ASKED, "tools": own}), JSON)
        await capture.whole(encode(answer(part)))
        assert len(noted.notes) == count
    assert noted.notes == [await expected(graft, call("own", id="x1"))]


async def test_an_answer_that_is_not_grafted_is_noted_as_well(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    outcome = await graft.request({**ASKED, "generationConfig": {"responseMimeType": "application/json"}}, STREAM)
    assert isinstance(outcome, Forward)
    assert outcome.exchange is None
    assert outcome.noted is not None
    says = framed(STREAM, [answer("{}")])[0]
    await note_answer(graft.grafter, outcome.noted, EVENTS, says)
    await note_answer(graft.grafter, outcome.noted, JSON, encode(answer("{}")))  # once is enough
    await note_answer(graft.grafter, outcome.noted, JSON, encode(answer("[]")))
    assert noted.notes == [await expected(graft, {"text": text}) for text in ("{}", "[]")]
    for body in (b"", b"{", b"null", b'{"error":{"code":400}}', b'{"candidates":[{"content":{"parts":["x"]}}]}'):
        await note_answer(graft.grafter, outcome.noted, JSON, body)
    assert len(noted.notes) == 2


@pytest.mark.parametrize("path", ["/v1beta/openai/chat/completions", "/v1beta/interactions"])
async def test_an_answer_in_another_language_that_is_not_grafted_is_noted(
    graft: Graft, noted: Noted, path: str
) -> None:
    await graft.tools(WEATHER)
    to = match_path("POST", path)
    assert to is not None
    asked: Document = {"model": "gemini-2.5-flash", "messages": [{"role": "user", "content": "hi"}]}
    asked["response_format"] = {"type": "json_object"}
    says: Document = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "{}"}}]}
    if "interactions" in path:
        asked = {"model": "gemini-2.5-flash", "input": "hi", "response_mime_type": "application/json"}
        output = {"type": "model_output", "content": [{"type": "text", "text": "{}"}]}
        says = {"id": "v1_a", "status": "completed", "steps": [output]}
    outcome = await graft.request(asked, to)
    assert isinstance(outcome, Forward)
    assert outcome.noted is not None
    await note_answer(graft.grafter, outcome.noted, JSON, encode(says))
    ((keys, _),) = noted.notes
    assert outcome.noted.keys.own(visible_digest([{"text": "{}"}])) == keys[0]


async def test_nothing_is_noted_of_a_session_that_hides_nothing(graft: Graft) -> None:
    await graft.tools(client_tools="keep")
    outcome = await graft.request(ASKED)
    assert isinstance(outcome, Forward)
    assert outcome.noted is None
    assert outcome.exchange is not None
    assert not outcome.exchange.notes
    await graft.tools(WEATHER, client_tools="keep")
    await graft.ask([user("hi")], answer(call()))
    await graft.tools(client_tools="keep")
    assert (await graft.exchange(ASKED)).notes, "something was hidden before"
    assert not (await graft.exchange({"contents": []}, target(Operation.CACHE, model=""))).notes


async def test_a_chat_that_hears_the_same_without_calls_is_not_given_those_of_another(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own = [{"functionDeclarations": [{"name": "own"}]}]
    visible_turn = await graft.ask([user("hi")], answer(call(), call("own")), tools=own)
    assert visible_turn == model(call("own"))
    body: Document = {"contents": [user("hi"), visible_turn, user(response("own"), "?")], "tools": own}
    assert (await graft.sent(body))["contents"][1] == model(call(), call("own"))
    assert await graft.ask([user("hi")], answer(call("own")), tools=own) == visible_turn
    assert (await graft.sent(body))["contents"] == body["contents"]
    assert b'toolgraft_ledger_misses_total{reason="plain"} 1.0' in graft.grafter.metrics.render()


async def test_a_store_that_fails_is_told_later(
    graft: Graft, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await graft.tools(WEATHER)
    save_plain, kept = store.save_plain, list[bytes]()

    async def fails(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        raise StoreUnavailable("disk full")

    async def works(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        kept.append(keys[0])
        await save_plain(session, keys, chain)

    monkeypatch.setattr(store, "save_plain", fails)
    for text in ("one", "two"):
        assert await graft.ask([user("hi")], answer(text)) == model(text)
    assert "noted later" in caplog.text
    monkeypatch.setattr(store, "save_plain", works)
    await graft.ask([user("hi")], answer("three"))
    own = (await graft.exchange(ASKED)).keys.own
    assert sorted(kept) == sorted(own(visible_digest([{"text": text}])) for text in ("one", "two", "three"))


@pytest.mark.parametrize(
    "error", [TypeError("nobody foresaw this"), asyncio.CancelledError()], ids=["error", "cut off"]
)
async def test_a_note_that_fails_otherwise_is_told_and_not_lost_either(
    error: BaseException,
    graft: Graft,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await graft.tools(WEATHER)
    save_plain, kept = store.save_plain, list[tuple[bytes, ...]]()

    async def fails_with_the_first(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        if keys == [b"one"] and failing:
            raise error
        kept.append(tuple(keys))
        await save_plain(session, keys, chain)

    monkeypatch.setattr(store, "save_plain", fails_with_the_first)
    failing = True
    with contextlib.suppress(asyncio.CancelledError):
        await graft.grafter.plain_notes.add("default", [b"one"], b"")
    assert kept == []
    if isinstance(error, TypeError):
        assert "nobody foresaw this" in caplog.text
        await graft.grafter.plain_notes.add("default", [b"two"], b"")
        assert kept == [(b"two",)], "one that fails keeps no other back"
    failing = False
    await graft.grafter.plain_notes.add("default", [b"three"], b"")
    assert kept[-2:] == [(b"three",), (b"one",)]


async def test_an_answer_whose_note_fails_goes_out(graft: Graft, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await graft.tools(WEATHER)

    async def fails(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        raise TypeError("nobody foresaw this")

    monkeypatch.setattr(store, "save_plain", fails)
    assert await graft.ask([user("hi")], answer("one")) == model("one")


async def test_it_is_told_when_more_notes_wait_than_are_kept(
    graft: Graft, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        raise StoreUnavailable("disk full")

    save_plain, kept = store.save_plain, list[Sequence[bytes]]()

    async def works(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        kept.append(keys)
        await save_plain(session, keys, chain)

    monkeypatch.setattr(store, "save_plain", fails)
    for number in range(1024):
        await graft.grafter.plain_notes.add("default", [b"%d" % number], b"")
    assert "never noted" not in caplog.text
    await graft.grafter.plain_notes.add("default", [b"last"], b"")
    assert "never noted" in caplog.text
    monkeypatch.setattr(store, "save_plain", works)
    await graft.grafter.plain_notes.add("default", [b"more"], b"")
    assert len(kept) == 1025
    assert [b"0"] not in kept
