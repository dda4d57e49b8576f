"""Decides the initial state of each call of an answer."""

from addon.core.answers.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.graft.owners import InitialState, Owners
from addon.graft.resumption import Resumption
from addon.graft.rounds import Rounds
from addon.graft.session_config import SessionConfig


class InitialStates:
    """The state of each call when it is stored. A call identical to a call of a broken-off answer does not run: it gets
    that call's answer, or is that very call if the answer is given by hand."""

    def __init__(self, owners: Owners, rounds: Rounds, config: SessionConfig, loop_id: str | None) -> None:
        self.resumption: Resumption | None = None
        self._owners = owners
        self._rounds = rounds
        self._config = config
        self._loop_id = loop_id
        self._taken: set[str] = set()
        self._calls_of_step = 0

    def begin_step(self) -> None:
        """The calls so far have ended."""
        self._calls_of_step = 0

    def stored_id(self, name: str, args: Document) -> str | None:
        """The id of the identical call that is answered by hand; None: the call is a new record."""
        if self.resumption is None or not self._rounds.has_one_candidate:
            return None
        earlier = self.resumption.identical(name, args, self._taken)
        if earlier is None or earlier.owner != "hand":
            return None
        self._taken.add(earlier.call_id)
        return earlier.call_id

    def __call__(self, call: CapturedCall) -> InitialState:
        initial_state = self._of(call)
        self._calls_of_step += 1
        if not initial_state.at_once or initial_state.repeats or self._calls_of_step > self._config.parallel:
            return initial_state
        return initial_state._replace(loop_id=self._loop_id)

    def _of(self, call: CapturedCall) -> InitialState:
        if not self._rounds.has_one_candidate:
            return InitialState(error=call.fault)
        initial_state = self._owners.initial_state(self._config, call, runs=self._rounds.runs(call))
        if self.resumption is None or not initial_state.begins or initial_state.error is not None:
            return initial_state
        if call.call_id in self._taken:  # it now has an executor
            return initial_state._replace(repeats=call.call_id, approval=False)
        earlier = self.resumption.identical(call.name, call.args, self._taken)
        if earlier is None:
            return initial_state
        self._taken.add(earlier.call_id)
        return initial_state._replace(repeats=earlier.call_id, approval=False)
