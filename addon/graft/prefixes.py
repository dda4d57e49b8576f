"""A cache of the beginnings of recent requests.

Histories only grow at their end, so a request usually begins with the bytes of the previous one. The budget has three
shares: beginnings as read; rewritten beginnings with true turns from the ledger; and rewritten beginnings without any.
A rewritten beginning may be as large as the body. True turns cost less to look up again than the client's calls cost to
convert to text.
"""

from collections.abc import Sequence

import xxhash

from addon.core.history.request import Prefix, Request
from addon.core.history.turns import History
from addon.graft.ledger import forget, has_true_turns, remembered_size
from store.budget import Budget, Share

SMALLEST = 1024
"""Beginnings shorter than this are not cached: reading one again costs as little as finding it. Longer ones are indexed
by this many bytes."""

_SIBLINGS = 64

Key = tuple[str, tuple[str, ...], bytes]
"""Session, path, and the hash of the first bytes."""


class Prefixes:
    """Beginnings by session and first bytes. Sessions never share one, because it holds ledger look-ups."""

    def __init__(self, budget: Budget) -> None:
        self._prefixes: Share[int, Key] = budget.share("prefixes", 5 / 48, self._unlink)
        self._rewritten: Share[int, History] = budget.share("rewritten", 3 / 8, lambda number, history: forget(history))
        self._restored: Share[int, History] = budget.share("restored", 3 / 16, lambda number, history: forget(history))
        self._by_head: dict[Key, dict[int, Prefix]] = {}  # least recently used first
        self._next = 0

    def find(self, session: str, path: Sequence[str], body: bytes) -> Prefix | None:
        best: tuple[int, Prefix] | None = None
        siblings = self._by_head.get(_key(session, path, body), {})
        for number, prefix in reversed(siblings.items()):
            if (best is None or prefix.end > best[1].end) and prefix.is_start_of(body):
                best = number, prefix
        if best is None:
            return None
        self._prefixes.get(best[0])
        self._rewritten.get(best[0])
        self._restored.get(best[0])
        siblings[best[0]] = siblings.pop(best[0])
        return best[1]

    def keep(self, session: str, path: Sequence[str], request: Request) -> None:
        """Cache the request's beginning instead of the shorter one that it was read with."""
        prefix = request.prefix() if request.history.end >= SMALLEST else None
        if prefix is None or prefix is request.known_prefix or prefix.end < SMALLEST:
            return
        key = _key(session, path, request.body)
        siblings = self._by_head.get(key, {})
        for number, known in siblings.items():
            if known is request.known_prefix:
                self._forget(number, key)
                break
        while len(siblings) >= _SIBLINGS:
            self._forget(next(iter(siblings)), key)
        number, self._next = self._next, self._next + 1
        self._by_head.setdefault(key, {})[number] = prefix
        if not self._prefixes.put(number, key, prefix.size):
            self._unlink(number, key)
        elif size := remembered_size(prefix.history):
            share = self._restored if has_true_turns(prefix.history) else self._rewritten
            if not share.put(number, prefix.history, size):
                forget(prefix.history)

    def clear(self) -> None:
        self._rewritten.drop_all()
        self._restored.drop_all()
        self._prefixes.clear()
        self._by_head.clear()

    def _forget(self, number: int, key: Key) -> None:
        self._prefixes.pop(number)
        self._unlink(number, key)

    def _unlink(self, number: int, key: Key) -> None:
        """Drop everything cached for a beginning."""
        self._rewritten.pop(number)
        self._restored.pop(number)
        siblings = self._by_head[key]
        del siblings[number]
        if not siblings:
            del self._by_head[key]


def _key(session: str, path: Sequence[str], body: bytes) -> Key:
    return session, tuple(path), xxhash.xxh3_128_digest(memoryview(body)[:SMALLEST])
