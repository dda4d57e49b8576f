"""Recent writes to a session's ledger: cached look-ups that no write concerned stay valid.

Bounded: for older revisions the changes are unknown.
"""

import itertools
from collections.abc import Collection

from store.models import LedgerChanges

MOST = 2048
"""The most turns and keys that are remembered."""

_EACH = 160
"""The approximate memory use of a turn or key in bytes."""


class Changes:
    """For each turn and key that was written recently in one session's ledger: the revision of its last write."""

    __slots__ = ("_first", "_highest", "_known_from", "_last", "revision")

    def __init__(self, revision: int = -1, highest: int = -1) -> None:
        """`revision`: the ledger's, -1 if it is unknown. `highest`: the highest of all ledgers. Revisions of this
        ledger between the two were lost with a server."""
        self._last: dict[str | bytes, int] = {}  # turn ids and keys, the last written at the end
        self._known_from = self._first = self.revision = revision
        self._highest = highest

    @property
    def size(self) -> int:
        return _EACH * len(self._last)

    def note(self, before: int, revision: int, turn_ids: Collection[str], keys: Collection[bytes]) -> None:
        """A write from one revision to the next concerned these turns and keys. `before` 0: the ledger had no turns, or
        its revision was unknown."""
        last = self._last
        if before != self.revision or not before:  # a write is unknown here
            last.clear()
            # Changes before this point, of a deleted session of this name or lost with a server, are unknown.
            self._known_from = before if before > max(self.revision, 0) else revision
        written: list[str | bytes] = [*turn_ids, *keys]
        for one in written:
            last.pop(one, None)  # it moves to the end
            last[one] = revision
        self.revision = revision
        if len(last) > MOST:
            self._keep(MOST * 7 // 8)  # drops more than necessary, so that this is not done for each write

    def shrink(self, size: int) -> None:
        """Forget the oldest writes until the rest takes at most `size` bytes."""
        if self.size > size:
            self._keep(size // _EACH)

    def _keep(self, most: int) -> None:
        for one in list(itertools.islice(self._last, len(self._last) - most)):
            self._known_from = self._last.pop(one)

    def since(self, revision: int, now: int) -> LedgerChanges | None:
        """The changes after `revision` up to `now`; None if they are unknown."""
        if not self._known_from <= revision <= now == self.revision or self._first < revision <= self._highest:
            return None
        changes = LedgerChanges()
        for one, last in reversed(self._last.items()):
            if last <= revision:
                break
            if isinstance(one, str):
                changes.turn_ids.add(one)
            else:
                changes.keys.add(one)
        return changes
