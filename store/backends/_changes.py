"""What was written to a session's ledger lately, so that readers need not forget what no write concerned.

For backends that one process writes. Bounded: what is not known any more is said to be so.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from cachetools import LRUCache

from store.models import LedgerChanges

WRITES = 512
"""How many of the last writes are known."""


def deletions() -> LRUCache[str, int]:
    """The events that told of the last deleted sessions: what was kept of a session is not good for the next one of
    its name."""
    return LRUCache(10_000)


class _Write(NamedTuple):
    revision: int
    turn_ids: Collection[str]
    keys: Collection[bytes]


class Changes:
    """The writes to one session's ledger, by the revisions that they led to."""

    __slots__ = ("_known_from", "_last", "_writes")

    def __init__(self) -> None:
        self._writes: deque[_Write] = deque()
        self._known_from = self._last = -1

    def note(self, before: int, revision: int, turn_ids: Collection[str], keys: Collection[bytes]) -> None:
        """A write that led from one revision to the next concerned these turns, and these keys. `before` 0: the ledger
        had no turns, or its revision was not known."""
        if before != self._last or not before:  # something was written that is not known here
            self._writes.clear()
            self._known_from = before or revision - 1
        if len(self._writes) == WRITES:
            self._known_from = self._writes.popleft().revision
        self._writes.append(_Write(revision, turn_ids, keys))
        self._last = revision

    def since(self, revision: int, now: int) -> LedgerChanges | None:
        """What was touched after `revision` and up to `now`; None where that is not known."""
        if revision < self._known_from or now != self._last:
            return None
        touched = LedgerChanges()
        for write in reversed(self._writes):
            if write.revision <= revision:
                break
            touched.turn_ids.update(write.turn_ids)
            touched.keys.update(write.keys)
        return touched
