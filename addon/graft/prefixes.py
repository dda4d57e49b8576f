"""A cache of the results for the beginnings of recent requests.

Histories only grow at their end, so a request begins with the bytes of the one before it. The cache drops the least
recently used beginnings first. It has two bounds in bytes: for the beginnings as they were read, and for what the
ledger knows of them and what they were rewritten as, which may be as large as the bodies themselves.
"""

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

from addon.core.history.request import Prefix, Request
from addon.core.history.turns import History
from addon.graft.ledger import forget, remembered_size

SMALLEST = 1024
"""Reading a shorter beginning again costs no more than finding it. Beginnings are indexed by so many bytes."""

_SIBLINGS = 64

Key = tuple[str, tuple[str, ...], bytes]
"""Session, path, and the hash of the first bytes."""


class Prefixes:
    """Beginnings by session and first bytes. Sessions never share a beginning, because it holds ledger look-ups.

    `capacity`: for what was read. `rewritten_capacity`: for what it was rewritten as, true turns included."""

    def __init__(self, capacity: int = 4 * 1024 * 1024, rewritten_capacity: int = 14 * 1024 * 1024) -> None:
        self.capacity = capacity
        self.rewritten_capacity = rewritten_capacity
        self.size = 0
        self.rewritten_size = 0
        self._entries: OrderedDict[int, tuple[Key, Prefix, int]] = OrderedDict()
        self._rewritten: OrderedDict[int, int] = OrderedDict()  # the sizes of those that were rewritten
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
        if best[0] in self._rewritten:
            self._rewritten.move_to_end(best[0])
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
        self._keep_rewritten(self._next, prefix.history)
        self._next += 1
        self.size += size
        while self.size > self.capacity:
            self._forget(next(iter(self._entries)))

    def _keep_rewritten(self, number: int, history: History) -> None:
        size = remembered_size(history)
        if not size:
            return
        self._rewritten[number] = size
        self.rewritten_size += size
        if size > self.rewritten_capacity // 2:
            self._forget_rewritten(number)
        while self.rewritten_size > self.rewritten_capacity:
            self._forget_rewritten(next(iter(self._rewritten)))

    def _forget_rewritten(self, number: int) -> None:
        self.rewritten_size -= self._rewritten.pop(number)
        forget(self._entries[number][1].history)

    def _forget(self, number: int) -> None:
        key, _, size = self._entries.pop(number)
        self.size -= size
        self.rewritten_size -= self._rewritten.pop(number, 0)
        siblings = self._by_head[key]
        siblings.remove(number)
        if not siblings:
            del self._by_head[key]


def _key(session: str, path: Sequence[str], body: bytes) -> Key:
    return session, tuple(path), xxhash.xxh3_128_digest(memoryview(body)[:SMALLEST])
