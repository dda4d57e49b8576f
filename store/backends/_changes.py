"""Recent writes to a session's ledger, so that readers can keep cached look-ups that no write concerned.

For backends with one writing process. Bounded: for older revisions the changes are unknown.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from store.budget import Budget, Share
from store.models import LedgerChanges

WRITES = 512
"""The number of recent writes that are known."""


class Deletions:
    """The numbers of the events of the last deleted sessions, by name: caches of a deleted session must not be used for
    a new session of its name."""

    def __init__(self, budget: Budget) -> None:
        self._numbers: Share[str, int] = budget.share("deleted sessions", 1 / 96, 1 / 24)

    def note(self, session: str, number: int) -> None:
        self._numbers.put(session, number, 128)

    def of(self, session: str) -> int:
        return self._numbers.get(session) or 0


class _Write(NamedTuple):
    revision: int
    turn_ids: Collection[str]
    keys: Collection[bytes]

    @property
    def size(self) -> int:
        return 256 + 80 * (len(self.turn_ids) + len(self.keys))


class Changes:
    """The writes to one session's ledger, by the resulting revision."""

    __slots__ = ("_known_from", "_writes", "revision", "size")

    def __init__(self, revision: int = -1) -> None:
        """`revision`: the ledger's, -1 if it is unknown."""
        self._writes: deque[_Write] = deque()
        self._known_from = self.revision = revision
        self.size = 0
        """The approximate memory use in bytes."""

    def note(self, before: int, revision: int, turn_ids: Collection[str], keys: Collection[bytes]) -> None:
        """A write from one revision to the next concerned these turns and keys. `before` 0: the ledger had no turns, or
        its revision was unknown."""
        if before != self.revision or not before:  # a write is unknown here
            self._writes.clear()
            self.size = 0
            self._known_from = before or revision  # a deleted session of this name may have had any older revision
        if len(self._writes) == WRITES:
            self._forget_oldest()
        write = _Write(revision, turn_ids, keys)
        self._writes.append(write)
        self.size += write.size
        self.revision = revision

    def shrink(self, size: int) -> None:
        """Forget the oldest writes until the rest takes at most so many bytes."""
        while self.size > size and self._writes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._writes.popleft()
        self._known_from = oldest.revision
        self.size -= oldest.size

    def since(self, revision: int, now: int) -> LedgerChanges | None:
        """The changes after `revision` up to `now`; None if they are unknown."""
        if revision < self._known_from or now != self.revision:
            return None
        changes = LedgerChanges()
        for write in reversed(self._writes):
            if write.revision <= revision:
                break
            changes.turn_ids.update(write.turn_ids)
            changes.keys.update(write.keys)
        return changes
