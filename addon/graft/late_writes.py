"""Writes that a failing store refused are made later: by `LateWrites` those that only this process can make, by
`PlainNotes` the notes of turns without calls."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from addon.monitoring.metrics import Metrics
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

    @property
    def has_server(self) -> bool:
        """Whether the store has a server: it can lose what it has taken, and other processes use it too."""
        return self._store.traffic is not None

    def add(self, key: str, write: Write) -> None:
        self._waiting.setdefault(key, write)
        if self._retries is None or self._retries.done():
            with contextlib.suppress(RuntimeError):  # without an event loop, the next `flush` makes it
                self._retries = asyncio.get_running_loop().create_task(self._retry(), name="writes made later")

    def remember(self, key: str, write: Write, size: int = 0) -> None:
        """Remember a write for `repeat`. The store has just made it, or its server does not know the call; making it
        twice does no harm. `size`: bytes that it holds, at most `MOST_BYTES`. Replaces an earlier one with this key."""
        if not self.has_server:
            return
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
        """Try each waiting write once, or only those with these keys. Raises StoreUnavailable at the first that the
        store refuses; that one and the rest still wait."""
        for key in list(self._waiting) if keys is None else keys:
            if key not in self._waiting:
                continue
            async with self._making:  # one flush at a time: a write made twice could undo one made in between
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


type _Note = tuple[str, Sequence[bytes], bytes]
"""The arguments of `Store.save_plain`."""

_MOST_NOTES = 1024
"""The most notes kept for a failed store."""


class PlainNotes:
    """`warn` logs a warning. `failed` logs an unexpected error with a description."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        warn: Callable[[str], None],
        failed: Callable[[Exception, str], object],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._warn = warn
        self._failed = failed
        self._waiting: deque[_Note] = deque()
        self._being_made: set[asyncio.Task[None]] = set()

    async def add(self, session: str, keys: Sequence[bytes], chain: bytes) -> None:
        """Note a turn without calls, while the answer continues. If the store fails, the note is made later, after all
        newer notes, so that a note that always fails does not block the others."""
        making = self._make((session, keys, chain))
        # the note leaves for the server before the end of the answer leaves for the client
        loop, name = asyncio.get_running_loop(), "a note of an answer without calls"
        task = asyncio.Task(making, loop=loop, eager_start=True, name=name)
        if not task.done():
            self._being_made.add(task)
            task.add_done_callback(self._being_made.discard)

    async def _make(self, new: _Note) -> None:
        note: _Note | None = new
        try:
            while note is not None:
                await self._store.save_plain(*note)
                note = self._waiting.popleft() if self._waiting else None
        except StoreUnavailable as error:
            self._metrics.error("store")
            self._warn(f"the store failed, answers without calls are noted later: {error}")
        except Exception as error:
            self._failed(error, "an answer without calls is noted later")
        finally:
            if note is not None:
                self._add_later(note)

    def _add_later(self, note: _Note) -> None:
        if len(self._waiting) == _MOST_NOTES:
            self._waiting.popleft()
            self._metrics.error("store")
            self._warn(f"more than {_MOST_NOTES} answers without calls wait to be noted: the oldest are never noted")
        self._waiting.append(note)
