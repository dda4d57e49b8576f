"""A cache of true turns by their ids, for histories whose beginning is not cached.

These are histories of clients that edit or cut earlier turns, and copies of a chat. All of them share a true turn,
which is valid until a write affects it.
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
        """The cached turns with these ids. `revision`: the oldest acceptable revision of the ledger. None finds
        nothing."""
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
        self._turns.clear()

    def keep(self, session: str, revision: int | None, true: TrueTurn) -> None:
        """Cache a turn. `revision`: the ledger's, before the turn was looked up."""
        if revision is not None:
            self._turns.put((session, true.turn_id), (revision, true), true.size)
