"""The store in this process's memory: SQLite on a connection without a file. It ends with the process."""

import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Self

from store.backends import _sqlite_file as files
from store.backends._sqlite_base import Transaction, note_lost_event
from store.backends.sqlite import SqliteStore

MAX_EVENTS = 100_000
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The most events that are kept, and their total characters: nothing else grows with every write."""


class MemoryStore(SqliteStore):
    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(":memory:", ttl=ttl, clock=clock)
        self.path = Path(":memory:")  # for messages
        self._events = self._event_bytes = 0

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        if url != "memory://":
            raise ValueError("use memory://, with nothing after it")
        return cls(ttl=ttl, clock=clock)

    async def open(self) -> None:
        if self._db is None:
            self._db = files.connect_memory()
            weakref.finalize(self, self._db.close)  # a store in memory need not be closed
            self._events = self._event_bytes = 0
            self._load()

    def _after_commit(self, tx: Transaction) -> None:
        super()._after_commit(tx)
        self._events += len(tx.events)
        self._event_bytes += sum(len(data) for _, _, _, data, _ in tx.events)
        if self._events > MAX_EVENTS or self._event_bytes > MAX_EVENT_BYTES:
            self._drop_events()

    def _drop_events(self) -> None:
        """Drop the oldest events, more than necessary, so that this is not done for each new event."""
        ((number, size),) = self._rows("SELECT count(*), coalesce(sum(length(data)), 0) FROM event")
        lost = self._lost_event
        for event, length in self._each_row("SELECT event_id, length(data) FROM event ORDER BY event_id"):
            if number <= MAX_EVENTS * 7 // 8 and size <= MAX_EVENT_BYTES * 7 // 8:
                break
            lost, number, size = event, number - 1, size - length
        self._events, self._event_bytes = number, size
        with Transaction(self) as tx:
            tx.db.execute("DELETE FROM event WHERE event_id <= ?", (lost,))
            note_lost_event(tx, lost)
        self._lost_event = lost
