"""Recent writes to a session's ledger, so that readers can keep cached look-ups that no write concerned.

For backends with one writing process. Bounded: for older revisions the changes are unknown.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from cachetools import LRUCache

from store.models import LedgerChanges

WRITES = 512
"""The number of recent writes that are known."""


def deletions() -> LRUCache[str, int]:
    """The numbers of the events of the last deleted sessions, by name: caches of a deleted session must not be used for
    a new session of its name."""
    return LRUCache(10_000)


class _Write(NamedTuple):
    revision: int
    turn_ids: Collection[str]
    keys: Collection[bytes]


class Changes:
    """The writes to one session's ledger, by the resulting revision."""

    __slots__ = ("_known_from", "_last", "_writes")

    def __init__(self) -> None:
        self._writes: deque[_Write] = deque()
        self._known_from = self._last = -1

    def note(self, before: int, revision: int, turn_ids: Collection[str], keys: Collection[bytes]) -> None:
        """A write from one revision to the next concerned these turns and keys. `before` 0: the ledger had no turns, or
        its revision was unknown."""
        if before != self._last or not before:  # a write is unknown here
            self._writes.clear()
            self._known_from = before or revision  # a deleted session of this name may have had any older revision
        if len(self._writes) == WRITES:
            self._known_from = self._writes.popleft().revision
        self._writes.append(_Write(revision, turn_ids, keys))
        self._last = revision

    def since(self, revision: int, now: int) -> LedgerChanges | None:
        """The changes after `revision` up to `now`; None if they are unknown."""
        if revision < self._known_from or now != self._last:
            return None
        changes = LedgerChanges()
        for write in reversed(self._writes):
            if write.revision <= revision:
                break
            changes.turn_ids.update(write.turn_ids)
            changes.keys.update(write.keys)
        return changes
