"""Lists that are read again and again, one reading after the other, so that the newest is the one that stays."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


class Refresher:
    """Reads a list with `refresh`, in a task of its own. `name` is for the log. Whoever reads the list otherwise holds
    `lock`."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], name: str) -> None:
        self._refresh = refresh
        self._name = name
        self.lock = asyncio.Lock()
        self._stale = False
        self._reads = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """The list has changed. While it is being read, it is read once more afterwards, however often this is said."""
        self._stale = True
        if not self._reads:
            self._reads = True  # before the task is made, which may begin, and end, at once
            self._task = asyncio.ensure_future(self._run())
            self._task.set_name(self._name)

    async def close(self) -> None:
        """Read no more, and wait for what is being read to end."""
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
                        _log.warning("%s stay as they were: %s", self._name, error)
        finally:
            self._reads = False
