"""The SQLite backend's connection: opened and closed, read, and written in transactions with their events.

What is kept in the tables is the business of the modules that build on this one.
"""

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

import filelock

from store.backends import _sqlite_file as files
from store.backends._checkpoints import Checkpoints
from store.backends._waiters import Waiters
from store.base import Store, StoreUnavailable
from store.models import Session

Rows = list[tuple[Any, ...]]


class SqliteBase(Store):
    suspends: ClassVar[bool] = False

    def __init__(
        self,
        path: str | Path,
        *,
        ttl: float = 7 * 24 * 3600,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        """`read_only`: needs no lock, so it works beside a running proxy; writes and `wait` raise StoreUnavailable."""
        super().__init__(ttl=ttl, clock=clock)
        self.path = Path(path).expanduser().absolute()
        self.read_only = read_only
        self._db: sqlite3.Connection | None = None
        self._lock: filelock.FileLock | None = None
        self._checkpoints: Checkpoints | None = None
        self._sessions: dict[str, Session] = {}  # all of them, written through
        self._revisions: dict[str, int] = {}
        self._next_revision = itertools.count(1)
        self._last_event = 0
        self._waiters = Waiters()

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        path = url.removeprefix("sqlite:///")
        if path in (url, ""):
            raise ValueError(f"store URL {url!r}: what fits is sqlite:///relative/path or sqlite:////absolute/path")
        return cls(path, ttl=ttl, clock=clock, read_only=read_only)

    async def open(self) -> None:
        if not self.read_only:
            self._lock = files.take_lock(self.path)
        try:
            files.check(self.path, read_only=self.read_only)
            self._db = files.connect(self.path, read_only=self.read_only)
            self._last_event = self._stored_last_event()
            if not self.read_only:
                for name, record in self._rows("SELECT name, record FROM session"):
                    self._sessions[name] = Session.model_validate_json(record)
                self._checkpoints = Checkpoints(self.path)
        except (OSError, sqlite3.Error, ValueError, StoreUnavailable) as error:
            await self.close()
            files.refuse(self.path, f"the database cannot be used: {error}", error)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._waiters.close()
        if self._checkpoints:
            self._checkpoints.close()
        if self._db:
            self._db.close()
        if self._lock:
            self._lock.release()
        self._checkpoints = self._db = self._lock = None
        self._sessions.clear()
        self._revisions.clear()

    async def ping(self) -> None:
        if self.read_only:
            self._rows("SELECT 1 FROM session LIMIT 1")
        else:
            with Transaction(self):
                pass

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreUnavailable(f"store {self.path}: not open")
        return self._db

    def _written(self, events: list[tuple[int, str, str, str, float]], size: int) -> None:
        """What follows from a transaction that was committed, and that wrote `size` bytes beside events."""
        self._last_event += len(events)
        self._waiters.wake((event_id, session) for event_id, session, *_ in events)
        if self._checkpoints:
            # A page for each of the tables and indexes; the records twice, as what they are and as events.
            self._checkpoints.wrote(20 * files.PAGE_SIZE + size + sum(2 * len(data) for _, _, _, data, _ in events))

    def _rows(self, statement: str, *values: Any) -> Rows:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreUnavailable(f"store {self.path}: {error}") from error

    def _stored_last_event(self) -> int:
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'event'")
        return int(rows[0][0]) if rows else 0


class Transaction:
    """All or nothing, with the events that tell of it. Waiters are woken once it is written.

    Raises StoreUnavailable for what SQLite raises in it. A `return` in it commits, any exception rolls back.
    """

    __slots__ = ("_events", "_store", "db", "now", "size")

    def __init__(self, store: SqliteBase) -> None:
        if store.read_only:
            raise StoreUnavailable(f"store {store.path}: opened read-only")
        self._store = store
        self._events: list[tuple[int, str, str, str, float]] = []
        self.db = store._connection
        self.now = store.clock()
        self.size = 0  # bytes of large records that no event tells of

    def record(self, session: str, kind: str, data: str) -> None:
        """An event of this transaction; `data` is JSON."""
        event_id = self._store._last_event + len(self._events) + 1
        self._events.append((event_id, session, kind, data, self.now))

    def __enter__(self) -> Self:
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._fail(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                self._fail(error)
            return
        try:
            if self._events:
                self.db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", self._events)
            self.db.execute("COMMIT")
        except sqlite3.Error as failure:
            self._roll_back()
            self._fail(failure)
        self._store._written(self._events, self.size)

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # SQLite may have done it already
            self.db.execute("ROLLBACK")

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        raise StoreUnavailable(f"store {self._store.path}: {error}") from error


def marks_for(values: Collection[str]) -> str:
    return ",".join("?" * len(values))


def batches[T](values: Collection[T]) -> Iterator[tuple[str, list[T]]]:
    """Values for `IN (marks)`, in batches that SQLite takes. Filled up to a power of two with the last value, so that
    few statements come about, and stay prepared."""
    for batch in itertools.batched(values, 4096, strict=False):
        size = 1 << (len(batch) - 1).bit_length()
        yield ",".join("?" * size), [*batch, *[batch[-1]] * (size - len(batch))]
