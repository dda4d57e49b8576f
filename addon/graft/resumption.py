"""What a retry takes over from a broken-off answer: complete rounds with their calls, and the calls of an incomplete
round.

No I/O. An answered call keeps its answer, and a running call is waited for. A call that ended without an answer runs
again if it has not begun or may run twice; otherwise the model is told that it may have run.
"""

import copy
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from addon.core.answers.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.core.history.calls import args_key
from addon.graft.exchange import new_call_id
from store.models import Call, Progress, Slot, Status, Step, Turn


class Resumed(NamedTuple):
    """A call of a complete step. `runs_twice`: it runs again, under this id."""

    call: CapturedCall
    runs_twice: bool


@dataclass(frozen=True, slots=True)
class Resumption:
    """`steps`: the complete steps, with their `calls`; calls that run again have new ids. `visible`: the parts of the
    `rounds` that the client received. `usage`: of each round. `left`: the calls of an incomplete round."""

    turn_id: str
    steps: tuple[Step, ...]
    visible: tuple[Document, ...]
    rounds: int
    usage: tuple[Document, ...]
    meta: Document
    calls: tuple[Resumed, ...]
    left: tuple[Call, ...]

    def identical(self, name: str, args: Document, taken: Collection[str]) -> Call | None:
        """The call of the incomplete round with this name and these arguments; None: the new call must run. `taken`:
        the ids of calls that already have a match."""
        wanted = args_key(args)
        for one in self.left:
            if one.call_id not in taken and one.name == name and args_key(one.model_args) == wanted:
                return one
        return None


def resumption(turn: Turn, calls: Sequence[Call], may_run_twice: Callable[[str], bool]) -> Resumption:
    """`may_run_twice`: whether calls of a tool of this name may run twice."""
    known = {call.call_id: call for call in calls}
    progress = _progress(turn, known)
    steps: list[Step] = []
    resumed: list[Resumed] = []
    complete: set[str] = set()
    for step in turn.steps[: progress.steps]:
        slots: list[Slot] = []
        for slot in step.slots:
            assert slot.call_id is not None
            call = known[slot.call_id]
            complete.add(call.call_id)
            runs_twice = _runs_twice(call, may_run_twice)
            captured = _captured(call, new_call_id() if runs_twice else call.call_id)
            resumed.append(Resumed(captured, runs_twice))
            slots.append(slot.model_copy(update={"call_id": captured.call_id}))
        steps.append(step.model_copy(update={"slots": slots}))
    usage = [*turn.usage[: progress.rounds]]
    return Resumption(
        turn.turn_id,
        tuple(steps),
        tuple(turn.visible[: progress.visible]),
        progress.rounds,
        (*usage, *({} for _ in range(progress.rounds - len(usage)))),
        progress.meta,
        tuple(resumed),
        tuple(call for call in calls if call.call_id not in complete and not _runs_twice(call, may_run_twice)),
    )


def _progress(turn: Turn, known: Container[str | None]) -> Progress:
    """The complete rounds. None of them counts if the store lacks one of their calls, as after the failover of a Redis
    server, because its response is unknown."""
    if turn.progress is not None:
        steps = turn.steps[: turn.progress.steps]
        if all(slot.call_id in known for step in steps for slot in step.slots):
            return turn.progress
    return Progress(steps=0, visible=0, rounds=0)


def has_begun(call: Call) -> bool:
    """Whether a proxy has started the call, or a worker has taken it."""
    return call.loop_id is not None or call.worker is not None


def _runs_twice(call: Call, may_run_twice: Callable[[str], bool]) -> bool:
    return call.status is Status.EXPIRED and (not has_begun(call) or may_run_twice(call.name))


def _captured(call: Call, call_id: str) -> CapturedCall:
    args = copy.deepcopy(call.args)  # the tool that runs the call may change them, and records never change
    return CapturedCall(call_id, call.name, args, call.gemini_id, call.index)
