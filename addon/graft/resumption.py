"""What an answer that broke off leaves to the request that is sent again: the rounds that are complete, with the calls
that ran in them, and the calls of a round that is not.

No I/O. A call that has an answer keeps it, and one that is being run is waited for. A call that ended without one runs
anew if it has not begun, or may run twice; otherwise the model is told that it may have run.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from addon.core.answers.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.core.history.calls import args_key
from addon.graft.records import new_call_id
from store.models import Call, Progress, Slot, Status, Step, Turn


class Resumed(NamedTuple):
    """A call of a complete step; `anew`: under this id it is run once more."""

    call: CapturedCall
    anew: bool


@dataclass(frozen=True, slots=True)
class Resumption:
    """`steps` are complete, and their calls are `calls`, those that run anew under new ids. `visible`: what the client
    was shown of the `rounds`, and `usage` what each used. `left` are the calls of a round that is not complete."""

    turn_id: str
    steps: tuple[Step, ...]
    visible: tuple[Document, ...]
    rounds: int
    usage: tuple[Document, ...]
    meta: Document
    calls: tuple[Resumed, ...]
    left: tuple[Call, ...]

    def identical(self, name: str, args: Document, taken: Collection[str]) -> Call | None:
        """The call of the broken round whose answer is also that of a call with this name and these arguments; None:
        that call has to run. `taken` are those that stand for another already."""
        wanted = args_key(args)
        for one in self.left:
            if one.call_id not in taken and one.name == name and args_key(one.args) == wanted:
                return one
        return None


def resumption(turn: Turn, calls: Sequence[Call], may_run_twice: Callable[[str], bool]) -> Resumption:
    """`may_run_twice`: whether calls of a tool of this name may."""
    known = {call.call_id: call for call in calls}
    progress = turn.progress or Progress(steps=0, visible=0, rounds=0)
    steps: list[Step] = []
    resumed: list[Resumed] = []
    complete: set[str] = set()
    for step in turn.steps[: progress.steps]:
        slots: list[Slot] = []
        for slot in step.slots:
            call = known.get(slot.call_id or "")
            if call is not None:
                complete.add(call.call_id)
                anew = _runs_anew(call, may_run_twice)
                captured = _captured(call, new_call_id() if anew else call.call_id)
                resumed.append(Resumed(captured, anew))
                slot = slot.model_copy(update={"call_id": captured.call_id})
            slots.append(slot)
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
        tuple(call for call in calls if call.call_id not in complete and not _runs_anew(call, may_run_twice)),
    )


def has_begun(call: Call) -> bool:
    """Whether a proxy has started the call, or a worker has taken it."""
    return call.loop_id is not None or call.worker is not None


def _runs_anew(call: Call, may_run_twice: Callable[[str], bool]) -> bool:
    return call.status is Status.EXPIRED and (not has_begun(call) or may_run_twice(call.name))


def _captured(call: Call, call_id: str) -> CapturedCall:
    return CapturedCall(call_id, call.name, call.args, call.gemini_id, call.index)
