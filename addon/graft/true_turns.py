"""A cache of true turns by their ids, for histories that are not known from their beginning on.

Such is the history of a client that edits or cuts what lies behind, and of each copy of a chat. A true turn is the same
for all of them, and valid until a write concerns it.
"""

from collections.abc import Iterable

from addon.core.history.steps import TrueTurn
from store.base import Store
from store.budget import Budget, Share
from store.models import LedgerChanges

type _Entry = tuple[int, TrueTurn]
"""The ledger's revision at which the turn was valid, and the turn."""


class TrueTurns:
    def __init__(self, store: Store, budget: Budget) -> None:
        self.store = store
        self._turns: Share[tuple[str, str], _Entry] = budget.share("true turns", 1 / 24)

    def find(self, session: str, revision: int | None, turn_ids: Iterable[str]) -> dict[str, TrueTurn]:
        """The turns of these ids that are known. `revision`: the oldest revision of the ledger that will do; None: only
        the store knows."""
        found: dict[str, TrueTurn] = {}
        changes: dict[int, LedgerChanges | None] = {}
        if revision is None:
            return found
        for turn_id in turn_ids:
            known = self._turns.get((session, turn_id))
            if known is None:
                continue
            since, true = known
            if since != revision:
                if since not in changes:
                    changes[since] = self.store.changes(session, since)
                if (touched := changes[since]) is None or turn_id in touched.turn_ids:
                    continue
                self._turns.replace((session, turn_id), (revision, true))
            found[turn_id] = true
        return found

    def clear(self) -> None:
        """Forget all turns."""
        self._turns.clear()

    def keep(self, session: str, revision: int | None, true: TrueTurn) -> None:
        """Remember a turn. `revision`: the ledger's, before the turn was looked up."""
        if revision is not None:
            self._turns.put((session, true.turn_id), (revision, true), true.size)
