"""Moves SQLite's write-ahead log into the database, in a thread with a connection of its own.

Left to the writer, the fsync of a checkpoint stalls the event loop for milliseconds. A passive checkpoint takes no
lock that a writer needs.
"""

import logging
import sqlite3
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

STEP = 4 << 20
"""Bytes of log after which a checkpoint is due."""

LIMIT = 128 << 20
"""Bytes of log after which the writer is made to wait once. A log is used again from its start only when a write
finds it moved as a whole, and under unbroken load no passive checkpoint gets to its end."""


class Checkpoints:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._grown = 0
        self._due = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="toolgraft-checkpoints", daemon=True)
        self._thread.start()

    def wrote(self, size: int) -> None:
        """The log has grown by about `size` bytes."""
        self._grown += size
        if self._grown >= STEP:
            self._grown = 0
            self._due.set()

    def close(self) -> None:
        """End the thread, and wait for it. The rest of the log is moved when the last connection is closed."""
        self._closing = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        db = sqlite3.connect(self._path, autocommit=True)
        try:
            while self._due.wait() and not self._closing:
                self._due.clear()
                self._checkpoint(db)
        finally:
            db.close()

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        try:
            _, pages, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            (page_size,) = db.execute("PRAGMA page_size").fetchone()
            if pages * page_size > LIMIT:
                db.execute("PRAGMA wal_checkpoint(RESTART)")
        except sqlite3.Error as error:
            logger.warning("store %s: the log could not be moved into the database: %s", self._path, error)
