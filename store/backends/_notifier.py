"""Waiting for writes of a store, and waking the waiters: a waiter registers, then reads, then waits to be woken. So no
write is missed.

The backends call `notify` after each write, their own or another process's. Only for the thread of the store's event
loop.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator

from store.base import StoreUnavailable

type Key = Hashable
"""A subject of waiting: each write wakes only the waiters of the keys that it concerns."""

ANY = None
"""Stands for any session."""

_LOOK = 10.0
"""Seconds after which a waiter looks without being woken: a server may lose notices."""

_PAUSE = 0.05
"""The least seconds between two looks in an outage."""


class Notifier:
    """`check`: raises StoreUnavailable if the store is not open, or is not notified of writes. `recovered`: as the
    store's; with it, a wait that has begun continues through outages, and ends when the store is closed."""

    def __init__(self, check: Callable[[], None], recovered: Callable[[float], Awaitable[None]] | None = None) -> None:
        self._check = check
        self._recovered = recovered
        self._waiting: dict[Key, dict[asyncio.Future[bool], int]] = {}
        self._first = asyncio.Event()
        self.last_number = 0
        """The number of this process's last write, if writes have numbers. Waiters know earlier writes already."""

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    @property
    def is_open(self) -> bool:
        try:
            self._check()
        except StoreUnavailable:
            return False
        return True

    def notify(
        self,
        events: Iterable[str],
        calls: Iterable[tuple[str, str, str | None]],
        changed: Iterable[str],
        number: int = sys.maxsize,
    ) -> None:
        """Wake the waiters of a write. `events`: sessions with new events. `calls`: session and id of the written
        calls, and their tool if they can be claimed. `changed`: sessions with deleted calls or changed tools."""
        keys: list[Key] = [("session", session) for session in changed]
        for session in events:
            keys += ("events", ANY), ("events", session)
        for session, call_id, tool in calls:
            keys.append(("call", call_id))
            if tool is not None:
                keys.append(("claim", session, tool))
        self._wake(keys, number)

    def wake_all(self) -> None:
        self._wake([*self._waiting], sys.maxsize)

    def _wake(self, keys: Iterable[Key], number: int) -> None:
        for key in keys:
            for future, after in self._waiting.get(key, {}).items():
                if number > after and not future.done():
                    future.set_result(True)

    def close(self) -> None:
        """End all waits."""
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(False)

    async def first(self, timeout: float) -> None:
        """Return as soon as anybody waits, at the latest after `timeout` seconds."""
        self._first.clear()
        if not self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._first.wait()

    async def wait[T](self, keys: Collection[Key], timeout: float, look: Callable[[], Awaitable[T | None]]) -> T | None:
        """The first result of `look` that is not None; None after the timeout, or when the store is closed."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        has_looked = False
        while True:
            with self._listening(keys) as woken:
                try:
                    found = await look()
                    has_looked = True
                    remaining = deadline - clock()
                    if found is not None or remaining <= 0:
                        return found
                    self._check()
                except StoreUnavailable:
                    if self._recovered is None:
                        raise
                    if not self.is_open:
                        return None
                    if not has_looked:
                        raise
                    await asyncio.sleep(min(max(deadline - clock(), 0), _PAUSE))  # `recovered` may not wait
                    await self._recovered(max(deadline - clock(), 0))
                    if deadline <= clock():
                        return None
                    continue
                try:
                    async with asyncio.timeout(min(remaining, _LOOK)):
                        if not await woken:
                            return None
                except TimeoutError:
                    if remaining <= _LOOK:
                        return None

    @contextlib.contextmanager
    def _listening(self, keys: Collection[Key]) -> Iterator[asyncio.Future[bool]]:
        """Yields a future: True once one of the keys is woken by a write after the last one of this process; False if
        the store is closed first."""
        keys = frozenset(keys)  # without duplicates
        self._first.set()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiting.setdefault(key, {})[future] = self.last_number
        try:
            yield future
        finally:
            for key in keys:
                del self._waiting[key][future]
                if not self._waiting[key]:
                    del self._waiting[key]
