"""Tasks that wait for a write of a store with one writing process: future by the write itself, never by polling.

To be used only in the thread of the event loop that uses the store.
"""

import asyncio
import contextlib
from collections.abc import Collection, Hashable, Iterable, Iterator

type Key = Hashable
"""A subject of waiting: each write wakes only the waiters of the keys that it concerns."""


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[Key, set[asyncio.Future[bool]]] = {}

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
    def listening(self, keys: Collection[Key]) -> Iterator[asyncio.Future[bool]]:
        """A future: True as soon as `wake` is called with one of the keys; False if the store is closed first."""
        keys = frozenset(keys)  # without duplicates
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiting.setdefault(key, set()).add(future)
        try:
            yield future
        finally:
            for key in keys:
                self._waiting[key].discard(future)
                if not self._waiting[key]:
                    del self._waiting[key]

    def wake(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for future in self._waiting.get(key, ()):
                if not future.done():
                    future.set_result(True)

    def wake_all(self) -> None:
        self.wake([*self._waiting])

    def close(self) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(False)
