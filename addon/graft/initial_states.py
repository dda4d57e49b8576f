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

    def __init__(self, owners: Owners, rounds: Rounds, config: SessionConfig) -> None:
        self.resumption: Resumption | None = None
        self._owners = owners
        self._rounds = rounds
        self._config = config
        self._taken: set[str] = set()

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
