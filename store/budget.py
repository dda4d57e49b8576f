"""The caches that only make a process faster: each kind of entry has a fixed share of `graft_cache_bytes`.

Here because both the store and the addon have such caches.
"""

from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any

from cachetools import LRUCache

DEFAULT_LIMIT = 24 * 1024 * 1024

ENTRY = 256
"""The approximate memory use of an entry in bytes, besides its key and value."""


class Budget:
    """`limit`: in bytes."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._shares: dict[str, Share[Any, Any]] = {}

    def share[K: Hashable, V](
        self, name: str, part: float, dropped: Callable[[K, V], object] = lambda key, value: None
    ) -> "Share[K, V]":
        """A share of this part of the limit, replacing an earlier share of this name. `dropped`: called with each entry
        that is dropped to make room."""
        share = Share[K, V](int(part * self.limit), dropped)
        self._shares[name] = share
        assert sum(one.limit for one in self._shares.values()) <= self.limit, "the shares are more than the whole"
        return share

    def sizes(self) -> dict[str, int]:
        """The bytes of each share, by name."""
        return {name: share.size for name, share in self._shares.items()}


class _Entries[K: Hashable, V](LRUCache[K, tuple[V, int]]):
    """Values with their sizes."""

    def __init__(self, limit: int, dropped: Callable[[K, V], object]) -> None:
        super().__init__(limit, getsizeof=itemgetter(1))
        self._dropped = dropped

    def popitem(self) -> tuple[K, tuple[V, int]]:
        key, entry = super().popitem()
        self._dropped(key, entry[0])
        return key, entry


class Share[K: Hashable, V]:
    """Entries of one kind. The least recently used are dropped first."""

    def __init__(self, limit: int, dropped: Callable[[K, V], object]) -> None:
        self.limit = limit
        self._entries = _Entries(limit, dropped)

    @property
    def size(self) -> int:
        return int(self._entries.currsize)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, size: int) -> bool:
        """Store a value of about `size` bytes, replacing the key's earlier value. False: it is larger than the share,
        and the key has no value now."""
        self.pop(key)
        if size + ENTRY > self.limit:
            return False
        self._entries[key] = value, size + ENTRY
        return True

    def replace(self, key: K, value: V) -> None:
        """Replace the key's value, if it has one, by another of the same size."""
        if (entry := self._entries.get(key)) is not None:
            self._entries[key] = value, entry[1]

    def pop(self, key: K) -> V | None:
        """Remove an entry. Returns its value."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[0]

    def clear(self) -> None:
        self._entries.clear()

    def drop_all(self) -> None:
        """Remove all entries, and call `dropped` for each."""
        while self._entries:
            self._entries.popitem()
