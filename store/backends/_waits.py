"""Waiting for a write of a store: a waiter registers, then reads, then waits to be woken. So no write is missed.

A mixin of the backends, which call `_wake` after each write. Only for the thread of the store's event loop.
"""

import abc
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator

from store.base import Store, StoreUnavailable
from store.models import Call, Event

type Key = Hashable
"""A subject of waiting: each write wakes only the waiters of the keys that it concerns."""

ANY = None
"""Stands for any session."""

_LOOK = 10.0
"""Seconds after which a waiter looks without being woken: a server may lose notices."""


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[Key, dict[asyncio.Future[bool], int]] = {}
        self._first = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @contextlib.contextmanager
    def listening(self, keys: Collection[Key], after: int) -> Iterator[asyncio.Future[bool]]:
        """Yields a future: True once `wake` is called with one of the keys, for a write after the number `after`; False
        if the store is closed first."""
        keys = frozenset(keys)  # without duplicates
        self._first.set()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiting.setdefault(key, {})[future] = after
        try:
            yield future
        finally:
            for key in keys:
                del self._waiting[key][future]
                if not self._waiting[key]:
                    del self._waiting[key]

    async def wanted(self, timeout: float) -> None:
        """Return as soon as anybody waits, at the latest after `timeout` seconds."""
        self._first.clear()
        if not self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._first.wait()

    def wake(self, keys: Iterable[Key], number: int) -> None:
        for key in keys:
            for future, after in self._waiting.get(key, {}).items():
                if number > after and not future.done():
                    future.set_result(True)

    def wake_all(self) -> None:
        self.wake([*self._waiting], sys.maxsize)

    def close(self) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(False)


class Waits(Store):
    _waiters: Waiters
    _last_number = 0
    """The number of this process's last write, if writes have numbers. Waiters know earlier writes already."""

    @abc.abstractmethod
    def _check_waiting(self) -> None:
        """Raises StoreUnavailable: the store is not open, or not notified of writes."""

    @abc.abstractmethod
    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        """Whether a claim of these tools would return or settle a call."""

    def _wake(
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
        self._waiters.wake(keys, number)

    async def _wait[T](
        self, keys: Collection[Key], timeout: float, look: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """The first result of `look` that is not None; None after the timeout, or when the store is closed."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while True:
            with self._waiters.listening(keys, self._last_number) as woken:
                found = await look()
                remaining = deadline - clock()
                if found is not None or remaining <= 0:
                    return found
                self._check_waiting()
                try:
                    async with asyncio.timeout(min(remaining, _LOOK)):
                        if not await woken:
                            return None
                except TimeoutError:
                    if remaining <= _LOOK:
                        return None

    async def wait_call(self, call: Call, timeout: float) -> Call | None:
        async def look() -> Call | None:
            now = await self.call(call.session, call.call_id)
            return now if now != call else None

        return await self._wait([("call", call.call_id), ("session", call.session)], timeout, look)

    async def wait_claimable(self, session: str, names: Collection[str], timeout: float) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout

        async def look() -> bool | None:
            return True if await self._is_claimable(session, names) else None

        keys = [("session", session), *(("claim", session, name) for name in names)]
        while True:
            remaining = max(deadline - clock(), 0.0)
            lease = await self.next_lease(session, names) if remaining else None
            part = remaining if lease is None else min(remaining, lease)
            if await self._wait(keys, part, look):
                return True
            with contextlib.suppress(StoreUnavailable):  # closed
                self._check_waiting()
                if part < remaining:
                    continue
            return False

    async def follow(self, session: str | None, after: str | None, timeout: float, *, limit: int = 100) -> list[Event]:
        async def look() -> list[Event] | None:
            return await self.events(after=after, session=session, limit=limit) or None

        return await self._wait([("events", session)], timeout, look) or []
