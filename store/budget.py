"""One budget, in bytes, for all that a process remembers only to be faster, shared out by kind.

Each kind of entry has a share. Within a share, the least recently used entries are dropped first. A share may grow
beyond its own part while there is room in the budget; if there is none, the share that is furthest beyond its own part
gives way. So no kind is pushed out of its own part by another.

Here because both the store and the addon remember things. The sizes of entries are estimates by those who put them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

DEFAULT_LIMIT = 24 * 1024 * 1024

ENTRY = 256
"""The approximate memory use of an entry in bytes, besides its key and value."""


class Budget:
    """`limit`: in bytes. The parts that are the shares' own must not add up to more."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.size = 0
        self._shares: dict[str, Share[Any, Any]] = {}

    def share[K: Hashable, V](
        self,
        name: str,
        own: float,
        most: float,
        dropped: Callable[[K, V], object] = lambda key, value: None,
        *,
        one: float = 0.5,
    ) -> "Share[K, V]":
        """A share for entries of one kind. `own`: the part of the limit that other shares leave to it. `most`: the part
        beyond which it never grows. `dropped`: called with each entry that was dropped for want of room. `one`: the
        part of the share that a single entry may take. If there is a share of this name, the new one replaces it: all
        entries of the old one are dropped, and it remembers nothing from then on."""
        if (old := self._shares.get(name)) is not None:
            while old:
                old.drop_oldest()
            old.largest = 0
        share = Share[K, V](self, int(own * self.limit), int(most * self.limit), dropped)
        share.largest = int(one * share.most)
        self._shares[name] = share
        assert sum(one.own for one in self._shares.values()) <= self.limit, "the shares' own parts are more than all"
        return share

    def sizes(self) -> dict[str, int]:
        """The bytes of each share, by name."""
        return {name: share.size for name, share in self._shares.items()}

    def make_room(self) -> None:
        """Drop entries until the budget is kept."""
        while self.size > self.limit:
            max(self._shares.values(), key=lambda share: share.size - share.own).drop_oldest()


class Share[K: Hashable, V]:
    """The entries of one kind: see `Budget.share`."""

    __slots__ = ("_budget", "_dropped", "_entries", "largest", "most", "own", "size")

    def __init__(self, budget: Budget, own: int, most: int, dropped: Callable[[K, V], object]) -> None:
        self.own = own
        self.most = most
        self.largest = most
        self.size = 0
        self._budget = budget
        self._dropped = dropped
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value of an entry, which is now the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def peek(self, key: K) -> V | None:
        """The value of an entry, which counts as unused."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, size: int) -> bool:
        """Remember a value of about this many bytes, in place of the key's former one. Returns False, with nothing
        remembered, if it would take so much of the share that it would push out too many others."""
        self.pop(key)
        size += ENTRY
        if size > self.largest:
            return False
        self._entries[key] = value, size
        self._add(size)
        while self.size > self.most:
            self.drop_oldest()
        if self._budget.size > self._budget.limit:
            self._budget.make_room()
        return True

    def replace(self, key: K, value: V) -> None:
        """Remember another value of the same size, if the key has one."""
        if (entry := self._entries.get(key)) is not None:
            self._entries[key] = value, entry[1]

    def pop(self, key: K) -> V | None:
        """Forget an entry. Returns its value."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._add(-entry[1])
        return entry[0]

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._add(-self.size)

    def drop_oldest(self) -> None:
        """Drop the least recently used entry, for want of room."""
        key, (value, size) = self._entries.popitem(last=False)
        self._add(-size)
        self._dropped(key, value)

    def _add(self, size: int) -> None:
        self.size += size
        self._budget.size += size
