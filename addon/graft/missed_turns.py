"""Counts and logs the model turns that were not found, although the session has entries with their words."""

import logging

from addon.core.history.keys import Keys
from addon.core.history.turns import HistoryTurn
from addon.graft.ledger_evidence import Miss
from addon.metrics import Metrics
from store.budget import Budget, Share

logger = logging.getLogger("toolgraft")

_SIZE = 256
"""The approximate memory use of a missed turn's key in bytes."""

_REASONS = {
    Miss.AMBIGUOUS: "turns of the session that read the same mean different things",
    Miss.PLAIN: "a turn without calls reads the same",
    Miss.MARKS: "its ids or signatures are not those of the turn that reads the same",
    Miss.ANSWERS: "its answers do not tell which of the turns that read the same it is",
    Miss.CONTEXT: "what stands before it has changed, and its words alone may be a coincidence",
}


class MissedTurns:
    """Counts and logs each turn once, however often it is sent."""

    def __init__(self, metrics: Metrics, budget: Budget) -> None:
        self._metrics = metrics
        self._reported: Share[tuple[str, bytes], None] = budget.share("missed turns", 1 / 48)

    def report(self, session: str, keys: Keys, turn: HistoryTurn, miss: Miss) -> None:
        key = session, keys.history(turn.key, turn.chain)
        if key in self._reported:
            return
        self._reported.put(key, None, _SIZE)
        self._metrics.ledger_miss(miss)
        logger.info("session %s: a model turn stays as the client has it: %s", session, _REASONS[miss])
