"""Moves SQLite's write-ahead log into the database, in a thread with a connection of its own.

A checkpoint ends in an fsync of milliseconds. Done by the writer it stalls the event loop; done beside the writer it
still holds up a write that comes just then, for the file system has one journal. So it waits for writing to pause.
"""

import logging
import sqlite3
import threading
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


class Checkpoints:
    def __init__(self, path: Path, size: int) -> None:
        """`size`: bytes that the log has already."""
        self._path = path
        self._written = size  # only the writer changes it
        self._moved = 0  # only the thread changes it
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolgraft-checkpoints", daemon=True)
        self._thread.start()

    def wrote(self, size: int) -> None:
        """The log has grown by about `size` bytes."""
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
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if written - self._moved >= LIMIT:  # now little is left to move while the writer waits
                ((is_busy, *_),) = db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                if is_busy:
                    self._moved = written - LIMIT + STEP  # tried again soon
                    return
        except sqlite3.Error as error:
            logger.warning("store %s: the log could not be moved into the database: %s", self._path, error)
        self._moved = written
