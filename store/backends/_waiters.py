"""Those who wait for an event of a store that one process writes: woken by the write itself, never by polling.

Belongs to one thread: the event loop's, where the store is used.
"""

import asyncio
from collections.abc import Iterable


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], tuple[int, str | None]] = {}

    async def wait(self, *, after: int, session: str | None, timeout: float) -> bool:
        """True as soon as `wake` is told of an event with an id above `after` (of `session`, where one is given);
        False after `timeout` seconds, or where the store is closed first."""
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = after, session
        try:
            async with asyncio.timeout(timeout):
                return await woken
        except TimeoutError:
            return False
        finally:
            del self._waiting[woken]

    def wake(self, written: Iterable[tuple[int, str]]) -> None:
        """Tell of events that were written, as (event id, session)."""
        if not self._waiting:
            return
        for event_id, name in written:
            for woken, (after, session) in self._waiting.items():
                if event_id > after and session in (None, name) and not woken.done():
                    woken.set_result(True)

    def close(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(False)
