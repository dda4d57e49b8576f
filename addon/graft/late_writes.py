"""Writes that a failing store refused, and that nobody can send again: they are made later."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from store.base import AlreadyAnswered, Store, StoreUnavailable, UnknownCall

logger = logging.getLogger("toolgraft")

type Write = Callable[[], Awaitable[object]]

_FIRST_PAUSE = 0.1  # seconds between the tries, doubled with each
_MAX_PAUSE = 5.0


class LateWrites:
    """Each write has a key: of two with the same key, the first is made."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, Write] = {}
        self._retries: asyncio.Task[None] | None = None
        self._made = asyncio.Event()
        self._making = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str, write: Write) -> None:
        self._waiting.setdefault(key, write)
        if self._retries is None or self._retries.done():
            with contextlib.suppress(RuntimeError):  # without an event loop, `flush` makes it
                self._retries = asyncio.get_running_loop().create_task(self._retry(), name="writes made later")

    async def flush(self, keys: Iterable[str] | None = None) -> None:
        """Make the waiting writes with these keys, each once; None: all. Raises StoreUnavailable."""
        for key in list(self._waiting) if keys is None else keys:
            if key not in self._waiting:
                continue
            async with self._making:  # a write that is made once more could undo what came after it
                if (write := self._waiting.get(key)) is not None:
                    with contextlib.suppress(AlreadyAnswered, UnknownCall):
                        await write()
                    self._waiting.pop(key, None)
                    self._made.set()

    async def wait(self, timeout: float) -> None:
        """Return once no write is waiting, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._waiting:
                    self._made.clear()
                    await self._made.wait()

    async def close(self) -> None:
        """Try once more, and drop the writes that are refused again."""
        if self._retries is not None:
            self._retries.cancel()
        try:
            await self.flush()
        except StoreUnavailable as failure:
            logger.warning("the store refused %d writes until the end: %s", len(self._waiting), failure)

    async def _retry(self) -> None:
        pause = _FIRST_PAUSE
        while self._waiting:
            await asyncio.sleep(pause)
            if self._store.outage:
                await self._store.recovered(_MAX_PAUSE)
            try:
                await self.flush()
            except StoreUnavailable:
                pause = min(2 * pause, _MAX_PAUSE)
            except Exception:
                logger.exception("the store failed to take what it had refused before")
                return
