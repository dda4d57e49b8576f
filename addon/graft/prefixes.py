"""A cache of the results for the beginnings of recent requests.

Histories only grow at their end, so a request begins with the bytes of the one before it. The cache is bounded in bytes
and drops the least recently used beginnings first.
"""

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

from addon.core.history.request import Prefix, Request

SMALLEST = 1024
"""Reading a shorter beginning again costs no more than finding it. Beginnings are indexed by so many bytes."""

_SIBLINGS = 64

Key = tuple[str, tuple[str, ...], bytes]
"""Session, path, and the hash of the first bytes."""


class Prefixes:
    """Beginnings by session and first bytes. Sessions never share a beginning, because it holds ledger look-ups."""

    def __init__(self, capacity: int = 4 * 1024 * 1024) -> None:
        self.capacity = capacity
        self.size = 0
        self._entries: OrderedDict[int, tuple[Key, Prefix, int]] = OrderedDict()
        self._by_head: dict[Key, list[int]] = {}  # the least recently used first
        self._next = 0

    def find(self, session: str, path: Sequence[str], body: bytes) -> Prefix | None:
        """The longest known beginning of this body."""
        best: tuple[int, Prefix] | None = None
        siblings = self._by_head.get(_key(session, path, body), [])
        for number in reversed(siblings):
            prefix = self._entries[number][1]
            if (best is None or prefix.end > best[1].end) and prefix.is_start_of(body):
                best = number, prefix
        if best is None:
            return None
        self._entries.move_to_end(best[0])
        siblings.remove(best[0])
        siblings.append(best[0])
        return best[1]

    def keep(self, session: str, path: Sequence[str], request: Request) -> None:
        """Remember the request's beginning instead of the shorter one that it was read with."""
        prefix = request.prefix() if request.history.end >= SMALLEST else None
        if prefix is None or prefix is request.known_prefix or prefix.end < SMALLEST:
            return
        size = prefix.size
        if size > self.capacity // 2:
            return
        key = _key(session, path, request.body)
        siblings = self._by_head.setdefault(key, [])
        for number in siblings:
            if self._entries[number][1] is request.known_prefix:
                self._forget(number)
                break
        while len(siblings) >= _SIBLINGS:
            self._forget(siblings[0])
        self._by_head.setdefault(key, siblings).append(self._next)
        self._entries[self._next] = (key, prefix, size)
        self._next += 1
        self.size += size
        while self.size > self.capacity:
            self._forget(next(iter(self._entries)))

    def _forget(self, number: int) -> None:
        key, _, size = self._entries.pop(number)
        self.size -= size
        siblings = self._by_head[key]
        siblings.remove(number)
        if not siblings:
            del self._by_head[key]


def _key(session: str, path: Sequence[str], body: bytes) -> Key:
    return session, tuple(path), xxhash.xxh3_128_digest(memoryview(body)[:SMALLEST])
