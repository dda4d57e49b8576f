"""Re-reads a list when it has changed. Reads never overlap, so that the newest result stays."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


class Refresher:
    """Reads a list with `refresh` in its own task. `name` is for the log. Other readers of the list hold `lock`."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], name: str) -> None:
        self._refresh = refresh
        self._name = name
        self.lock = asyncio.Lock()
        self._stale = False
        self._is_running = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Ask for a read. Any number of requests during a read cause one more read."""
        self._stale = True
        if not self._is_running:
            self._is_running = True  # set first: an eager task may end before `ensure_future` returns
            self._task = asyncio.ensure_future(self._run())
            self._task.set_name(self._name)

    async def close(self) -> None:
        """Stop reading, and wait for the current read to end."""
        self._stale = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._stale:
                async with self.lock:
                    self._stale = False
                    try:
                        await self._refresh()
                    except Exception as error:
                        _log.warning("%s stay unchanged: %s", self._name, error)
        finally:
            self._is_running = False
