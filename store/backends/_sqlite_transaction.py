"""Transactions of the SQLite backend, which write their events."""

import contextlib
import itertools
import sqlite3
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from store.backends._clocks import ClockNote, Now
from store.models import Call

if TYPE_CHECKING:
    from store.backends._sqlite_base import SqliteBase


class Transaction:
    """An atomic write with its events. Wakes waiters after the commit.

    Raises StoreUnavailable or StoreBusy for errors of SQLite. A `return` inside commits, an exception rolls back.
    """

    __slots__ = ("_ledger_writes", "_store", "calls", "changed", "db", "events", "now")

    def __init__(self, store: "SqliteBase") -> None:
        store._check_writable()
        self._store = store
        self.db = store._connection
        self.now = store.clock()
        self.events: list[tuple[int, str, str, str, float]] = []
        self.calls: list[Call] = []  # the written calls
        self.changed: list[str] = []  # sessions with deleted calls or changed tools
        self._ledger_writes: list[tuple[str, Collection[str], Collection[bytes]]] = []

    @property
    def times(self) -> Now:
        return Now(self.now, self._store._clocks.steady())

    def record(self, session: str, kind: str, data: str) -> None:
        """An event of this transaction; `data` is JSON."""
        number = self._store._last_event + len(self.events) + 1
        self.events.append((number, session, kind, data, self.now))

    def touch(self, session: str, turn_ids: Collection[str], keys: Collection[bytes] = ()) -> None:
        """Note that the transaction changes these turns and keys of the session's ledger."""
        self._ledger_writes.append((session, turn_ids, keys))

    def __enter__(self) -> Self:
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._store._fail(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                self._store._fail(error)
            return
        try:
            if self.events:
                self.db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", self.events)
            self.db.execute("COMMIT")
        except sqlite3.Error as failure:
            self._roll_back()
            self._store._fail(failure)
        for session, turn_ids, keys in self._ledger_writes:
            self._store._note(session, turn_ids, keys)
        self._store._after_commit(self)

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back already
            self.db.execute("ROLLBACK")


def note_time(tx: Transaction, note: ClockNote) -> None:
    tx.db.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (note.text(),))


def note_lost_event(tx: Transaction, number: int) -> None:
    """Store that the events up to this number are deleted."""
    tx.db.execute("INSERT OR REPLACE INTO meta VALUES ('lost_event', ?)", (number,))


def marks_for(values: Collection[str]) -> str:
    return ",".join("?" * len(values))


def batches[T](values: Collection[T]) -> Iterator[tuple[str, list[T]]]:
    """Values for `IN (marks)`, in batches that SQLite allows. Each batch is padded with its last value to a power of
    two, so that few different statements are prepared."""
    for batch in itertools.batched(values, 4096, strict=False):
        size = 1 << (len(batch) - 1).bit_length()
        yield ",".join("?" * size), [*batch, *[batch[-1]] * (size - len(batch))]
