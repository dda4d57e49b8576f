"""Makes commits safe from a power failure: an fsync of SQLite's write-ahead log, in a thread of its own.

Commits do not wait for the disk (`synchronous` is NORMAL): an fsync takes milliseconds and would block the event loop.
Callers await `sync` before they acknowledge a write, and concurrent callers share one fsync.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from store import disk
from store.base import NotDurable


class Syncs:
    """`written` returns a number that grows with each write. Writes before the construction are safe already."""

    def __init__(self, log: Path, written: Callable[[], int]) -> None:
        self._log = log
        self._written = written
        self._safe = written()
        self._file: int | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._failure: OSError | None = None
        self._thread = ThreadPoolExecutor(1, "toolgraft-sync")

    async def sync(self) -> None:
        """Return once all earlier writes are safe. Raises NotDurable."""
        target = self._written()
        while self._safe < target:
            if self._failure is not None:
                raise NotDurable(f"{self._log}: {self._failure}") from self._failure
            # A running flush may have begun before the write: then another one is needed.
            if self._flushing is None:
                self._flushing = asyncio.ensure_future(self._flush())
            await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        written = self._written()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._flush_log)
            self._safe = written
        except OSError as error:
            # The kernel may have dropped the data that it could not write: a later successful fsync proves nothing.
            self._failure = error
        finally:
            self._flushing = None

    def _flush_log(self) -> None:
        if self._file is None:
            self._file = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        disk.flush(self._file)

    def close(self) -> None:
        self._thread.shutdown()
        if self._file is not None:
            os.close(self._file)
            self._file = None
