"""Writes that only this process can make. Writes that a failing store refused are made later; recent writes are
repeated if the store's server may have lost them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from store.base import AlreadyAnswered, Store, StoreUnavailable, UnknownCall

logger = logging.getLogger("toolgraft")

type Write = Callable[[], Awaitable[object]]

_FIRST_PAUSE = 0.1  # seconds between attempts at first, doubled after each
_MAX_PAUSE = 5.0

_KEPT = 60.0  # seconds before the latest write: older writes are forgotten
_MOST = 1000  # the most writes remembered
MOST_BYTES = 4 << 20  # the most bytes that they hold


class _Remembered(NamedTuple):
    write: Write
    size: int
    at: float


class LateWrites:
    """Writes by key. Of two waiting writes with the same key, the first is made."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[str, Write] = {}
        self._remembered: dict[str, _Remembered] = {}  # oldest first
        self._remembered_bytes = 0
        self._retries: asyncio.Task[None] | None = None
        self._made = asyncio.Event()
        self._making = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str, write: Write) -> None:
        self._waiting.setdefault(key, write)
        if self._retries is None or self._retries.done():
            with contextlib.suppress(RuntimeError):  # without an event loop, the next `flush` makes it
                self._retries = asyncio.get_running_loop().create_task(self._retry(), name="writes made later")

    def remember(self, key: str, write: Write, size: int = 0) -> None:
        """Remember a write for `repeat`. The store has just made it, or its server does not know the call; making it
        twice does no harm. `size`: bytes that it holds, at most `MOST_BYTES`. Replaces an earlier one with this key."""
        if self._store.traffic is None:
            return  # only a server can lose what it has taken
        self.forget(key)
        now = self._clock()
        self._remembered[key] = _Remembered(write, size, now)
        self._remembered_bytes += size
        while self._remembered_bytes > MOST_BYTES or len(self._remembered) > _MOST or self._oldest < now - _KEPT:
            self.forget(next(iter(self._remembered)))

    def forget(self, key: str) -> None:
        """Forget the write with this key: its effect was undone or replaced."""
        if (made := self._remembered.pop(key, None)) is not None:
            self._remembered_bytes -= made.size

    @property
    def _oldest(self) -> float:
        return next(iter(self._remembered.values())).at

    def repeat(self) -> None:
        """Make the remembered writes again: the store's server may have lost them."""
        for key, made in self._remembered.items():
            self.add(key, made.write)

    async def flush(self, keys: Iterable[str] | None = None) -> None:
        """Make the waiting writes with these keys (None: all) once each. Raises StoreUnavailable."""
        for key in list(self._waiting) if keys is None else keys:
            if key not in self._waiting:
                continue
            async with self._making:  # a repeated write could undo a later one
                if (write := self._waiting.get(key)) is not None:
                    with contextlib.suppress(AlreadyAnswered, UnknownCall):
                        await write()
                    self._waiting.pop(key, None)
                    self._made.set()

    async def wait(self, timeout: float) -> None:
        """Wait until no write is waiting, at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._waiting:
                    self._made.clear()
                    await self._made.wait()

    async def close(self) -> None:
        """Try once more, and drop the writes that the store refuses again."""
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
