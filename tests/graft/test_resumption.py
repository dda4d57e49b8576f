"""What an answer that broke off leaves."""

from collections.abc import Collection
from typing import Any

import pytest

from addon.graft.rounds import Resumption, resumption
from store.models import Call, Progress, Slot, Status, Step, Turn

SAYS = [{"text": "a"}, {"text": "b"}]


def call(name: str, status: Status = Status.DONE, **fields: Any) -> Call:
    more = {"args": {"n": 1}, "gemini_id": "g", "turn_id": "t", "created_at": 1.0, "updated_at": 1.0, **fields}
    return Call(call_id=f"call_{name}", session="default", name=name, status=status, **more)


def left_by(progress: Progress | None, *calls: Call, lost: Collection[Call] = ()) -> Resumption:
    """Of a turn with a step for each call. `lost`: calls of it that the store no longer has."""
    steps = [
        Step(content={"role": "model", "parts": []}, slots=[Slot(name=one.name, call_id=one.call_id)]) for one in calls
    ]
    turn = Turn(
        turn_id="t", session="default", visible=SAYS, steps=steps, usage=[{"n": 1}], progress=progress, created_at=1.0
    )
    return resumption(turn, [one for one in calls if one not in lost], lambda name: name == "twice")


def complete(steps: int) -> Progress:
    return Progress(steps=steps, visible=1, rounds=2, meta={"responseId": "r"})


def test_complete_rounds_are_kept_and_the_rest_is_left_out() -> None:
    one, other = call("one"), call("other")
    found = left_by(complete(1), one, other)
    assert [step.slots[0].call_id for step in found.steps] == ["call_one"]
    assert (found.visible, found.rounds, found.meta) == (({"text": "a"},), 2, {"responseId": "r"})
    assert found.usage == ({"n": 1}, {}), "one for each round"
    assert [(one.call.call_id, one.call.gemini_id, one.runs_twice) for one in found.calls] == [("call_one", "g", False)]
    assert found.left == (other,)


def test_without_the_record_of_one_call_no_round_is_kept() -> None:
    """A step without it would go to the model as a call without a response, which the service refuses each time."""
    one, other = call("one"), call("other")
    found = left_by(complete(2), one, other, lost=[other])
    assert (found.steps, found.calls, found.visible, found.rounds, found.usage) == ((), (), (), 0, ())
    assert found.left == (one,), "its answer stands for an identical call"


def test_a_tool_that_changes_its_arguments_does_not_change_the_record() -> None:
    known = call("twice", Status.EXPIRED, args={"list": [1]})
    (one,) = left_by(complete(1), known).calls
    one.call.args["list"].append(2)
    assert known.args == {"list": [1]}


@pytest.mark.parametrize(
    ("known", "runs_again"),
    [
        (call("send"), False),
        (call("send", Status.FAILED, error="no"), False),
        (call("send", Status.DENIED, error="no"), False),
        (call("send", Status.RUNNING, loop_id="l"), False),
        (call("send", Status.EXPIRED, loop_id="l"), False),
        (call("send", Status.EXPIRED, worker="w"), False),
        (call("send", Status.EXPIRED), True),
        (call("twice", Status.EXPIRED, loop_id="l"), True),
        (call("twice", Status.EXPIRED, worker="w"), True),
        (call("twice"), False),
    ],
    ids=lambda value: f"{value.name} {value.status}" if isinstance(value, Call) else "",
)
def test_a_call_runs_again_if_it_has_not_begun_or_may_run_twice(known: Call, runs_again: bool) -> None:
    found = left_by(complete(1), known)
    (one,) = found.calls
    assert one.runs_twice is runs_again
    assert (one.call.call_id == known.call_id) is not runs_again
    assert found.steps[0].slots[0].call_id == one.call.call_id
    assert left_by(None, known).left == (() if runs_again else (known,))


@pytest.mark.parametrize(
    ("name", "args", "fits"),
    [("one", {"n": 1}, True), ("one", {"n": 1.0}, False), ("one", {"n": True}, False), ("other", {"n": 1}, False)],
)
def test_an_identical_call_of_a_broken_step_stands_for_one(name: str, args: Any, fits: bool) -> None:
    found = left_by(None, call("one"))
    assert found.identical(name, args, set()) == (found.left[0] if fits else None)
    assert found.identical(name, args, {"call_one"}) is None
