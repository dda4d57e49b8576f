"""Moves SQLite's write-ahead log into the database, in a thread with a connection of its own.

A checkpoint ends in an fsync of milliseconds. Done by the writer it stalls the event loop; done beside the writer it
still holds up a write that comes just then, for the file system has one journal. So it waits for writing to pause.
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
"""Bytes of log after which it waits no longer. The log is used again from its start only when a write finds it moved
as a whole, which unbroken load prevents: then the writer is made to wait once. Readers that stay prevent it as well,
and are not waited for. The file is cut to this size when it is used again from its start."""


WAIT = 0.02
"""Seconds for which a checkpoint waits for the writer, and then, with the writer kept out, for readers: whoever reads
for longer is not waited for, and the log grows."""


def move(db: sqlite3.Connection, mode: str) -> bool:
    """One checkpoint; False where it had to wait for somebody for too long. Raises sqlite3.Error."""
    ((is_busy, _, _),) = db.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    return not is_busy


class Checkpoints:
    """Before 3.51.3, SQLite could lose a commit that uses the log again from its start while a checkpoint begins. A
    commit does that after the log was moved as a whole, and only then. A checkpoint may have done that: so after each
    none begins until a transaction that was begun later has written."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: bytes that the log has already."""
        self._path = path
        self._written = size  # only the writer changes these three
        self._begun = 0  # transactions
        self._committed = 0  # the last of them that wrote
        self._moved = 0  # only the thread changes these two
        self._whole = 0  # the last transaction that was begun when the log may have been moved as a whole
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolgraft-checkpoints", daemon=True)
        self._thread.start()

    def begins(self) -> None:
        """A transaction begins."""
        self._begun += 1

    def wrote(self, size: int) -> None:
        """The transaction that was begun last has made the log grow by about `size` bytes."""
        self._committed = self._begun
        self._written += size
        if self._written - self._moved >= STEP and not self._due.is_set():
            self._due.set()

    def close(self) -> None:
        """End the thread, and wait for it. The rest of the log is moved when the last connection is closed."""
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
                if self._committed > self._whole:
                    self._checkpoint(db)
        finally:
            db.close()

    def _wait_for_a_pause(self) -> None:
        seen = None
        while seen != self._written and self._written - self._moved < LIMIT:
            seen = self._written
            if self._closing.wait(QUIET):
                return

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        written = self._written
        is_long = written - self._moved >= LIMIT
        self._moved = written
        try:
            self._move(db, "PASSIVE")
            # now little is left to move while the writer waits
            if is_long and self._is_written_again() and not self._move(db, "RESTART"):
                self._moved = written - LIMIT + STEP  # tried again soon
        except sqlite3.Error as error:
            logger.warning("store %s: the log could not be moved into the database: %s", self._path, error)

    def _move(self, db: sqlite3.Connection, mode: str) -> bool:
        try:
            return move(db, mode)
        finally:
            self._whole = self._begun

    def _is_written_again(self) -> bool:
        """Whether writing goes on: where it has paused, the next commit uses the log from its start."""
        end = time.monotonic() + QUIET
        while self._committed <= self._whole:
            if self._closing.wait(0.001) or time.monotonic() > end:
                return False
        return True
