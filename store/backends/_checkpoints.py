"""Moves SQLite's write-ahead log into the database, in a thread with a connection of its own.

A checkpoint ends with an fsync of milliseconds. In the writer's thread it would stall the event loop; in another thread
it still delays concurrent writes, since the file system has one journal. So it waits for a pause in writing.
"""

import logging
import sqlite3
import threading
import time
from pathlib import Path

logger = logging.getLogger(__name__)

STEP = 4 << 20
"""Bytes of log after which a checkpoint is due, as soon as nothing was written for `QUIET` seconds."""

QUIET = 0.2

LIMIT = 64 << 20
"""Bytes of log after which a checkpoint no longer waits. SQLite restarts the log only if a write finds it completely
moved. Under load that takes some tries; if they fail, the writer has to wait once. Long readers prevent it as well, and
are not waited for. The file is truncated to this size when the log restarts."""

TRIES = 20
"""The number of times that the rest of a long log is moved beside the writer, before the writer has to wait."""

WAIT = 0.02
"""Seconds for which a checkpoint waits for the writer and then, with the writer blocked, for readers. Longer readers
are not waited for, and the log grows."""


_HEADER = 32
"""Bytes."""


def move(db: sqlite3.Connection, mode: str) -> tuple[bool, int]:
    """One checkpoint. Returns whether it did not have to wait for too long, and the pages in the log when it began.
    Raises sqlite3.Error."""
    ((is_busy, size, _),) = db.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    return not is_busy, size


def beginning(log: Path) -> bytes:
    """The header of a log: another one after each restart. Empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            return file.read(_HEADER)
    except OSError:
        return b""


class Checkpoints:
    """Before 3.51.3, SQLite could lose a commit that restarts the log while a checkpoint begins. A commit restarts the
    log only after it was completely moved, which each checkpoint may do. So after each checkpoint, none begins until a
    transaction that began later has written."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: current size of the log in bytes."""
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._written = size  # only the writer changes these three
        self._transactions = 0  # begun so far
        self._last_commit = 0  # the number of the last transaction that wrote
        self._moved = 0  # only the thread changes these two
        self._moved_at = 0  # the number of transactions when the log may have been completely moved
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolgraft-checkpoints", daemon=True)
        self._thread.start()

    def begins(self) -> None:
        """A transaction begins."""
        self._transactions += 1

    def wrote(self, size: int) -> None:
        """The last transaction made the log grow by about `size` bytes."""
        self._last_commit = self._transactions
        self._written += size
        if self._written - self._moved >= STEP and not self._due.is_set():
            self._due.set()

    def close(self) -> None:
        """End the thread, and wait for it. The rest of the log is moved when the last connection closes."""
        self._closing.set()
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        db = sqlite3.connect(self._path, timeout=WAIT, autocommit=True)
        try:
            while self._due.wait() and not self._closing.is_set():
                self._due.clear()
                self._wait_for_a_pause()
                if self._closing.is_set():
                    break
                if self._last_commit > self._moved_at:
                    self._checkpoint(db)
        finally:
            db.close()

    def _wait_for_a_pause(self) -> None:
        before = None
        while before != self._written and self._written - self._moved < LIMIT:
            before = self._written
            if self._closing.wait(QUIET):
                return

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        written = self._written
        is_long = written - self._moved >= LIMIT
        self._moved = written
        header = beginning(self._log)
        try:
            self._move(db, "PASSIVE")
            if is_long and not self._restart(db, header):
                self._moved = written - LIMIT + STEP  # tried again soon
        except sqlite3.Error as error:
            logger.warning("store %s: the log could not be moved into the database: %s", self._path, error)

    def _restart(self, db: sqlite3.Connection, header: bytes) -> bool:
        """Move what was written meanwhile, until the log restarts. Returns whether that succeeded. `header`: the log's
        before.

        The commit that restarts a log waits for the disk once, so the log is looked at: another checkpoint would tell
        as well, but would have it restart again."""
        for _ in range(TRIES):
            if not self._is_written_again() or beginning(self._log) != header:
                return True
            # Begun right after a commit, this often ends before the next one, which then restarts the log.
            self._move(db, "PASSIVE")
        return not self._is_written_again() or beginning(self._log) != header or self._move(db, "RESTART")[0]

    def _move(self, db: sqlite3.Connection, mode: str) -> tuple[bool, int]:
        try:
            return move(db, mode)
        finally:
            self._moved_at = self._transactions

    def _is_written_again(self) -> bool:
        """Whether writing continues: after a pause, the next commit restarts the log."""
        end = time.monotonic() + QUIET
        while self._last_commit <= self._moved_at:
            if self._closing.wait(0.001) or time.monotonic() > end:
                return False
        return True
