"""Tasks that wait for a write of a store with one writing process: future by the write itself, never by polling.

To be used only in the thread of the event loop that uses the store.
"""

import asyncio
import contextlib
import sys
from collections.abc import Collection, Hashable, Iterable, Iterator

type Key = Hashable
"""A subject of waiting: each write wakes only the waiters of the keys that it concerns."""


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[Key, dict[asyncio.Future[bool], int]] = {}
        self._first = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, keys: Collection[Key], timeout: float) -> bool:
        """True as soon as `wake` is called with one of the keys; False after `timeout` seconds, or if the store is
        closed first."""
        with self.listening(keys) as woken:
            try:
                async with asyncio.timeout(timeout):
                    return await woken
            except TimeoutError:
                return False

    @contextlib.contextmanager
    def listening(self, keys: Collection[Key], after: int = -1) -> Iterator[asyncio.Future[bool]]:
        """A future: True as soon as `wake` is called with one of the keys, for a write after this number; False if the
        store is closed first."""
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

    def wake(self, keys: Iterable[Key], number: int = 0) -> None:
        """`number`: of the write, if writes have numbers."""
        for key in keys:
            for future, after in self._waiting.get(key, {}).items():
                if number > after and not future.done():
                    future.set_result(True)

    def wake_all(self) -> None:
        for key in [*self._waiting]:
            self.wake([key], sys.maxsize)

    def close(self) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(False)
