"""The table of the answer machine against the machine, which takes each step of the table, and no other."""

from collections.abc import Sequence
from typing import Any

import pytest

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.graft.machine import AnswerMachine, BadAnswer
from addon.graft.machine_protocol import TABLE, ImpossibleEvent, State, Wait
from addon.graft.rounds import Resumed, Resumption
from addon.settings import Settings
from store.backends.memory import MemoryStore
from store.models import Slot, Step
from tests.contents import call, model
from tests.graft.conftest import EVENTS, WEATHER, Graft, answer
from tests.graft.test_machine import TARGETS, Runs, body_of, exchange_of

NEW, ASKING, READING, WRITING, ENDING, CALLING, OVER = State

type Act = tuple[Any, ...]
"""An event, and its arguments."""


def feed(*documents: Document) -> Act:
    return "feed", body_of(TARGETS["sse"], documents)


def cut(document: Document) -> Act:
    """An event that lacks its blank line: it is read when the stream ends."""
    return "feed", body_of(TARGETS["sse"], [document]).rstrip()


def resume(*calls: CapturedCall) -> Act:
    slots = [Slot(name=one.name, call_id=one.call_id) for one in calls]
    steps = (Step(content=model(call()), slots=slots),) if calls else ()
    resumed = tuple(Resumed(one, False) for one in calls)
    return "resume", Resumption("turn_1", steps, (), len(steps), ({},) * len(steps), {}, resumed, ())


START, BEGIN, FINISH, RESPONSES, CLOSE = ("start",), ("begin", EVENTS), ("finish",), ("take_responses",), ("close",)
FAIL, REFUSAL = ("fail", 502, "UNAVAILABLE", "words"), ("on_refusal", 400, b"{}")
TEXT, END, CALL = feed(answer("a", finish=None)), feed(answer("b")), feed(answer(call()))
PARTIAL = feed(answer({"functionCall": {"name": "get_weather", "willContinue": True}}, finish=None))
WRONG = feed(answer("", finish="MALFORMED_FUNCTION_CALL"))
PIECE = feed({"candidates": [{"content": model("c"), "finishReason": "CONTINUATION", "continuationToken": "t"}]})
UNREADABLE = ("feed", b'data: {"functionCall"\n\n')
ANY = {one[0]: one for one in (START, resume(), BEGIN, TEXT, FINISH, RESPONSES, REFUSAL, FAIL, CLOSE)}

SECOND = (START, BEGIN, CALL, FINISH, RESPONSES, BEGIN)  # rounds after the first are always read
TO: dict[State, tuple[Act, ...]] = {
    NEW: (),
    ASKING: (START,),
    READING: SECOND,
    WRITING: (*SECOND, TEXT),
    ENDING: (*SECOND, END),
    CALLING: (START, BEGIN, CALL, FINISH),
    OVER: (FAIL,),
}
LOOPS: list[tuple[Act, ...]] = [
    *[(*TO[state], ANY[event]) for state, events in TABLE.items() for event in events],
    (resume(CapturedCall("call_1", "get_weather", {}, None, 0)),),
    (*TO[READING], CALL),
    (*TO[READING], UNREADABLE),
    (*TO[READING], WRONG, FINISH),
    (*TO[READING], cut(answer("a", finish=None)), FINISH),
    (*TO[WRITING], END, FINISH),
    (*TO[WRITING], UNREADABLE),
    (*TO[WRITING], CALL, FINISH),
    (*TO[WRITING], WRONG, FINISH),
    (*TO[ENDING], CALL),
    (*TO[ENDING], UNREADABLE),
    (*TO[ENDING], cut(answer(call())), FINISH),
    (*TO[ENDING], PARTIAL, FINISH),
    (*TO[ENDING], PIECE, FINISH),
    (*TO[CALLING], ("take_responses", {})),
]
ALONE: list[tuple[Act, ...]] = [
    (resume(), BEGIN, CALL),
    (BEGIN, FINISH),
    (BEGIN, PARTIAL, FINISH),
    (BEGIN, TEXT, PARTIAL, FINISH),
]


class Walk:
    """A machine, and the steps that it took: state, event, next state."""

    def __init__(self, machine: AnswerMachine) -> None:
        self.machine = machine
        self.steps: list[tuple[State, str, State]] = []
        self.waits: Sequence[CapturedCall] = ()

    def go(self, *acts: Act) -> "Walk":
        for event, *given in acts:
            before, noted = self.machine.state, len(self.steps)
            if event == "take_responses" and not given:
                given = [{one.call_id: {"response": {}} for one in self.waits}]
            effects = getattr(self.machine, event)(*given)
            try:
                for effect in [] if isinstance(effects, bytes) else effects:
                    self.waits = effect.calls if isinstance(effect, Wait) else self.waits
                    if self.machine.state is not before or len(self.steps) == noted:
                        self.steps.append((before, event, before := self.machine.state))
            except BadAnswer:
                assert self.machine.can_retry
            if self.machine.state is not before or len(self.steps) == noted:
                self.steps.append((before, event, self.machine.state))
        return self


async def walk(graft: Graft, *acts: Act, loops: bool = True) -> Walk:
    exchange = await exchange_of(graft, TARGETS["sse"])
    body = exchange.request.body if loops else None
    return Walk(AnswerMachine(exchange, Settings(), lambda: 1.0, Runs(MemoryStore()), body)).go(*acts)


async def test_the_machine_takes_the_steps_of_the_table(graft: Graft) -> None:
    await graft.tools(WEATHER)
    taken = {one for acts in LOOPS for one in (await walk(graft, *acts)).steps}
    taken |= {one for acts in ALONE for one in (await walk(graft, *acts, loops=False)).steps}
    table = {(state, event, to) for state, events in TABLE.items() for event, tos in events.items() for to in tos}
    assert taken - table == set(), "not in the table"
    assert table - taken == set(), "never taken"


@pytest.mark.parametrize("state", State)
async def test_an_event_that_the_table_does_not_have_is_refused(graft: Graft, state: State) -> None:
    await graft.tools(WEATHER)
    walked = await walk(graft, *TO[state])
    for event in ANY.keys() - TABLE[state].keys():
        with pytest.raises(ImpossibleEvent, match=f"^{event} is impossible while an answer is {state}$"):
            walked.go(ANY[event])
        assert walked.machine.state is state


async def test_a_step_that_the_table_does_not_have_is_refused(graft: Graft, monkeypatch: pytest.MonkeyPatch) -> None:
    await graft.tools(WEATHER)
    monkeypatch.setitem(TABLE, NEW, {"start": (OVER,)})
    with pytest.raises(ImpossibleEvent, match="start"):
        await walk(graft, START)


async def test_nothing_passes_behind_the_end(graft: Graft) -> None:
    await graft.tools(WEATHER)
    walked = await walk(graft, BEGIN, loops=False)
    assert walked.machine.passes(TEXT[1])
    assert walked.machine.state is WRITING
    walked.go(FAIL)
    assert not walked.machine.passes(TEXT[1])
    assert walked.machine.feed(TEXT[1]) == b""
