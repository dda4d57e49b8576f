"""Those who wait for a write of a store that one process writes: woken by the write itself, never by polling.

Belongs to one thread: the event loop's, where the store is used.
"""

import asyncio
from collections.abc import Collection, Hashable, Iterable

type Key = Hashable
"""What is waited for: each write names the keys that it concerns, and nobody else is woken."""


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[Key, set[asyncio.Future[bool]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, keys: Collection[Key], timeout: float) -> bool:
        """True as soon as `wake` is told of one of the keys; False after `timeout` seconds, or where the store is
        closed first."""
        keys = frozenset(keys)  # who waits may name one twice
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiting.setdefault(key, set()).add(woken)
        try:
            async with asyncio.timeout(timeout):
                return await woken
        except TimeoutError:
            return False
        finally:
            for key in keys:
                self._waiting[key].discard(woken)
                if not self._waiting[key]:
                    del self._waiting[key]

    def wake(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for woken in self._waiting.get(key, ()):
                if not woken.done():
                    woken.set_result(True)

    def close(self) -> None:
        for waiting in self._waiting.values():
            for woken in waiting:
                if not woken.done():
                    woken.set_result(False)
