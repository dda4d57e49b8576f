"""Makes commits safe from a power failure: an fsync of SQLite's write-ahead log, in the thread for the disk.

Commits do not wait for the disk (`synchronous` is NORMAL): an fsync takes milliseconds and would block the event loop.
Callers await `sync` before they acknowledge a write, and concurrent callers share one fsync.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from store import disk
from store.base import NotDurable


class Syncs:
    """`written` returns a number that grows with each write. Writes before the construction are safe already."""

    def __init__(self, log: Path, written: Callable[[], int]) -> None:
        self._log = log
        self._written = written
        self._target = self._safe = written()
        self._lock = threading.Lock()  # of the following
        self._file: int | None = None
        self._failure: OSError | None = None
        self._is_closed = False

    async def sync(self) -> None:
        """Return once all earlier writes are safe. Raises NotDurable."""
        target = self._written()
        if self._safe >= target:
            return
        self._target = target
        try:
            await disk.disk_thread().begin(self._flush)
        except OSError as error:
            raise NotDurable(f"{self._log}: {error}") from error

    def _flush(self) -> None:
        """Make the writes up to the target safe, which are in the log."""
        with self._lock:
            target = self._target
            if self._failure is not None:
                # The kernel may have dropped the data that it could not write: a later successful fsync proves nothing.
                raise self._failure
            if self._safe >= target:
                return
            if self._is_closed:
                raise OSError("closed before its last writes were flushed")
            try:
                if self._file is None:
                    self._file = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
                disk.flush(self._file)
            except OSError as error:
                self._failure = error
                raise
            self._safe = target

    def close(self) -> None:
        """Wait for a flush that is under way. Others fail."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None
