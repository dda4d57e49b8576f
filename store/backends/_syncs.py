"""Makes commits safe from a power failure: an fsync of SQLite's write-ahead log, beside the event loop.

Commits do not wait for the disk (`synchronous` is NORMAL): an fsync takes milliseconds and would block the event loop.
Callers await `sync` before they acknowledge a write, and concurrent callers share one fsync.
"""

import os
from collections.abc import Callable
from pathlib import Path

from store import disk
from store.base import NotDurable


class Syncs:
    """`written` returns a number that grows with each write. Writes before the construction are safe already, and the
    log is there. Raises OSError."""

    def __init__(self, log: Path, written: Callable[[], int]) -> None:
        self._log = log
        self._written = written
        self._safe = written()
        self._file = disk.File(os.open(log, os.O_RDONLY | os.O_CLOEXEC))

    async def sync(self) -> None:
        """Return once all earlier writes are safe. Raises NotDurable."""
        target = self._written()
        if self._safe >= target:
            return
        try:
            await disk.begin_flush(self._file)
        except OSError as error:
            raise NotDurable(f"{self._log}: {error}") from error
        self._safe = max(self._safe, target)
