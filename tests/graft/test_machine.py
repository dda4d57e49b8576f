"""The answer machine without a shell: what is to be done, in which order, wherever its bytes are cut."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from addon.core.answer import CapturedCall
from addon.core.framing import streams
from addon.core.framing.documents import Document, decode, encode
from addon.core.history.request import Request
from addon.graft import rounds, turn_records
from addon.graft.exchange import Exchange
from addon.graft.machine import AnswerMachine, BadAnswer
from addon.graft.machine_protocol import Begin, Effect, End, Note, Refuse, Save, Send, Show, Start, Wait
from addon.graft.owners import ByHand, InitialState
from addon.graft.session_config import SessionConfig
from addon.settings import Settings
from addon.surfaces.incoming import Framing, Operation, Target
from store.backends.memory import MemoryStore
from tests.contents import call, model, user
from tests.graft.conftest import EVENTS, JSON, WEATHER, Graft, answer, target

TARGETS = {
    "json": target(),
    "sse": target(Operation.STREAM, Framing.SSE),
    "array": target(Operation.STREAM, Framing.ARRAY),
    "wrapped": target(Operation.STREAM, Framing.SSE, surface="codeassist"),
}
FORMS = pytest.mark.parametrize("form", TARGETS)
STREAMS = pytest.mark.parametrize("form", ["sse", "array", "wrapped"])


class Runs(ByHand):
    """Everything can be run."""

    def can_run(self, config: SessionConfig, name: str) -> bool:
        return True

    def initial_state(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> InitialState:
        return InitialState(error=call.fault, begins=runs)


def body_of(to: Target, documents: Sequence[Document]) -> bytes:
    """An answer of these documents."""
    wrapped = [{"response": one} if to.response_path else one for one in documents]
    if to.framing is Framing.SSE:
        return b"".join(streams.sse_event(encode(one)) for one in wrapped)
    if to.framing is Framing.ARRAY:
        return b"[" + b"\n,\r\n".join(map(encode, wrapped)) + b"\n]"
    return encode(wrapped[-1])


async def exchange_of(graft: Graft, to: Target) -> Exchange:
    body: Document = {"contents": [user("hi")]}
    return await graft.exchange({"model": "m", "request": body} if to.request_path else body, to)


class Driven:
    """A loop's machine that is fed answers, and what it asked for."""

    def __init__(
        self, exchange: Exchange, cut: Callable[[bytes], Iterable[bytes]] = lambda data: [data], **settings: Any
    ) -> None:
        self.exchange = exchange
        self.cut = cut
        self.done: list[Effect] = []
        self.machine = AnswerMachine(
            exchange, Settings(**settings), lambda: 1.0, Runs(MemoryStore()), exchange.request.body
        )
        self.take(self.machine.start())

    def take(self, effects: bytes | Iterable[Effect]) -> None:
        for effect in [Show(effects)] * bool(effects) if isinstance(effects, bytes) else effects:
            self.done.append(effect)

    def feed(self, documents: Sequence[Document] | bytes, content_type: str | None = None) -> None:
        to = self.exchange.target
        data = documents if isinstance(documents, bytes) else body_of(to, documents)
        self.take(self.machine.begin(content_type or (EVENTS if to.framing is Framing.SSE else JSON)))
        for chunk in self.cut(data):
            self.take(chunk if self.machine.passes(chunk) else self.machine.feed(chunk))
        self.take(self.machine.finish())

    def answer(self, response: Document) -> None:
        wait = self.done[-1]
        assert isinstance(wait, Wait)
        self.take(self.machine.take_responses({one.call_id: {"response": response} for one in wait.calls}))

    @property
    def order(self) -> list[str]:
        """What was asked for, neighbours of one kind as one."""
        names = [type(effect).__name__ for effect in self.done if not isinstance(effect, Note)]
        return [name for name, _ in itertools.groupby(names)]

    @property
    def output(self) -> bytes:
        return b"".join(effect.data for effect in self.done if isinstance(effect, Show))


STEP = [answer("Wait. ", finish=None), answer(call(args={"city": "Oslo"}, id="x")), {"usageMetadata": {"n": 1}}]
REST = [answer("do", finish=None), answer("ne", finish=None), answer("", responseId="r")]


@FORMS
async def test_calls_are_stored_before_they_begin_and_a_turn_before_the_client_is_told_of_its_end(
    graft: Graft, form: str
) -> None:
    await graft.tools(WEATHER)
    to = TARGETS[form]
    driven = Driven(await exchange_of(graft, to))
    driven.feed(STEP if form != "json" else [answer("Wait. ", call(args={"city": "Oslo"}, id="x"))])
    if form == "json":
        assert driven.order == ["Send", "Save", "Start", "Wait"]
    else:
        assert driven.order == ["Send", "Begin", "Show", "Save", "Start", "Save", "Wait"], "the step is complete later"
    *_, saved = (effect for effect in driven.done if isinstance(effect, Save))
    assert len(saved.calls) == (form == "json")
    assert saved.turn.progress is not None
    assert saved.turn.progress.steps == saved.turn.progress.visible == saved.turn.progress.rounds == 1
    driven.answer({"celsius": 3})
    sent = driven.done[-1]
    assert isinstance(sent, Send)
    contents = decode(sent.body).get("request", decode(sent.body))["contents"]
    assert contents[-1]["parts"][0]["functionResponse"] == {
        "id": "x",
        "name": "get_weather",
        "response": {"celsius": 3},
    }
    before = len(driven.done)
    driven.feed(REST if form != "json" else [answer("done")])
    last = driven.done[before:]
    saves = [number for number, effect in enumerate(last) if isinstance(effect, Save)]
    ends = next(n for n, effect in enumerate(last) if isinstance(effect, Show) and b"finishReason" in effect.data)
    assert saves[0] < ends
    first = last[saves[0]]
    assert isinstance(first, Save)
    assert (first.last, bool(first.keys), len(first.turn.steps)) == (True, True, 2)
    assert driven.done[-1] == End("answered")


def one_by_one(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def halves(at: int, data: bytes) -> list[bytes]:
    return [piece for piece in (data[:at], data[at:]) if piece]


@FORMS
async def test_a_loop_is_the_same_whole_byte_by_byte_and_cut_anywhere(
    graft: Graft, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    exchange = await exchange_of(graft, TARGETS[form])

    def run(cut: Callable[[bytes], Iterable[bytes]]) -> Any:
        turns, calls = itertools.count(1), itertools.count(1)
        monkeypatch.setattr(turn_records, "new_turn_id", lambda: f"turn_{next(turns):016x}")
        monkeypatch.setattr(rounds, "new_call_id", lambda: f"call_{next(calls)}")
        driven = Driven(exchange, cut)
        exchange.wire.events_sent = 0
        driven.feed(STEP if form != "json" else [answer("Wait. ", call(args={"city": "Oslo"}, id="x"))])
        driven.answer({"celsius": 3})
        driven.feed(REST if form != "json" else [answer("done")])
        return driven.output, driven.order[0], [one for one in driven.done if isinstance(one, Save | Start | Wait)]

    expected = run(lambda data: [data])
    assert run(one_by_one) == expected
    for at in range([*TARGETS].index(form) % 3, len(body_of(TARGETS[form], STEP)), 3):
        assert run(partial(halves, at)) == expected, at


@FORMS
@pytest.mark.parametrize("policy", ["fail", "pass"])
async def test_a_failed_save_ends_the_answer_or_is_passed_over(graft: Graft, form: str, policy: str) -> None:
    await graft.tools(WEATHER)
    driven = Driven(await exchange_of(graft, TARGETS[form]), on_store_error=policy)
    driven.feed(STEP if form != "json" else [answer(call())])
    instead = driven.machine.on_store_failure()
    if policy == "pass":
        assert instead is None
        return
    assert instead is not None
    ended, reason = instead
    assert ended == End("error"), "noted before the client may ask again"
    assert isinstance(reason, Refuse if form == "json" else Show)
    assert b"the store does not answer" in (reason.body if isinstance(reason, Refuse) else reason.data)
    assert list(driven.machine.finish()) == [], "nothing more is said"


@FORMS
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"   "])
async def test_a_later_answer_that_is_none_is_asked_for_again(graft: Graft, form: str, body: bytes) -> None:
    await graft.tools(WEATHER)
    driven = Driven(await exchange_of(graft, TARGETS[form]))
    driven.feed(STEP if form != "json" else [answer(call())])
    driven.answer({})
    for kind in (EVENTS, JSON, "text/html"):
        with pytest.raises(BadAnswer):
            driven.feed(body, kind)
        assert driven.machine.can_retry
    driven.feed(REST if form != "json" else [answer("done")])
    assert driven.done[-1] == End("answered")


@STREAMS
async def test_a_stream_begins_at_once_and_has_one_end(graft: Graft, form: str) -> None:
    await graft.tools(WEATHER)
    driven = Driven(await exchange_of(graft, TARGETS[form]), one_by_one)
    driven.feed(STEP)
    driven.answer({})
    driven.feed(REST)
    assert [type(effect) for effect in driven.done].count(Begin) == 1
    assert driven.order[:2] == ["Send", "Begin"]
    assert driven.output.count(b'"finishReason"') == 1
    assert b"functionCall" not in driven.output


async def test_a_request_is_sent_as_it_is_and_read_only_for_a_further_round(
    graft: Graft, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    exchange = await exchange_of(graft, TARGETS["sse"])
    body, read = encode({"contents": [user("hi"), model("ho"), user("go")]}), list[bytes]()
    whole = exchange.wire.read

    def note(data: bytes) -> Request:
        read.append(data)
        return whole(data)

    monkeypatch.setattr(exchange.wire, "read", note)
    machine = AnswerMachine(exchange, Settings(), lambda: 1.0, Runs(MemoryStore()), body)
    (sent,) = machine.start()
    assert isinstance(sent, Send)
    assert sent.body is body
    machine.begin(EVENTS)
    output = machine.feed(body_of(exchange.target, [answer(call(args={"city": "Oslo"}, id="x"))]))
    assert not isinstance(output, bytes)
    effects = [*output, *machine.finish()]
    assert not read
    (wait,) = [one for one in effects if isinstance(one, Wait)]
    *_, following = machine.take_responses({one.call_id: {"response": {"celsius": 1}} for one in wait.calls})
    assert isinstance(following, Send)
    assert read == [body]
    assert decode(following.body)["contents"][:3] == decode(body)["contents"]
    assert len(decode(following.body)["contents"]) == 5
