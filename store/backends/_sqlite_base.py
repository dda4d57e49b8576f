"""The SQLite backend's connection: opening, closing, reading, and waking waiters after a commit.

The other modules know the contents of the tables.
"""

import abc
import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import filelock

from store import disk
from store.backends import _records as records
from store.backends import _sqlite_file as files
from store.backends import _states as states
from store.backends._changes import Changes
from store.backends._clocks import ClockNote, Clocks, Now
from store.backends._notifier import Notifier
from store.backends._shared import SharedMethods
from store.base import NotDurable, StoreBusy, StoreUnavailable
from store.budget import Budget, Share
from store.models import Call, Session


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


Rows = list[tuple[Any, ...]]

LONGEST_LEASE = 3600.0
"""Seconds. Longer leases are cut after a reboot of the machine, since steady time restarts then."""


class KnownSession(NamedTuple):
    """A session's record; None if missing or unreadable."""

    record: Session | None
    is_unreadable: bool = False


class SqliteBase(SharedMethods):
    def __init__(
        self,
        path: str | Path,
        *,
        ttl: float = 7 * 24 * 3600,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        """`read_only`: takes no lock, so it works beside a running proxy; writes and waits raise StoreUnavailable."""
        super().__init__(ttl=ttl, clock=clock)
        self.path = Path(path).expanduser().absolute()
        self.read_only = read_only
        self.secret, self.epoch = b"", ""
        self._db: sqlite3.Connection | None = None
        self._lock: filelock.FileLock | None = None
        self._log: disk.File | None = None  # SQLite's, if acknowledgements wait for the disk
        self._safe = 0  # the number of changed rows that survive a power failure
        self._next_revision = itertools.count(1)
        self._clocks = self._new_clocks()
        self._leases: dict[str, float] = {}  # of proxies: when they run out, in steady time
        self._conversation_locks: dict[tuple[str, str], tuple[str, str]] = {}  # by session and name: holder, proxy
        self.locked_since: float | None = None  # by another program: see `sqlite`
        self._files: dict[Path, tuple[int, int] | None] = {}  # each with its identity
        self._file_error = ""
        self._damage = ""
        self._last_event = self._lost_event = 0
        self.notifier = Notifier(self._check_waiting)

    def remember_within(self, budget: Budget) -> None:
        records.remember_within(budget)
        self._sessions: Share[str, KnownSession] = budget.share("sessions", 1 / 16)
        self._writes: Share[str, Changes] = budget.share("ledger writes", 1 / 32)
        self._deleted: Share[str, int] = budget.share("deleted sessions", 1 / 96)
        """The numbers of the events of the last deleted sessions, by name: caches of a deleted session must not be used
        for a new session of its name."""
        self._calls: Share[str, Call] = budget.share("calls", 1 / 96)  # by id: read again to be answered

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        path = url.removeprefix("sqlite:///")
        if path in (url, ""):
            raise ValueError("use sqlite:///relative/path or sqlite:////absolute/path")
        return cls(path, ttl=ttl, clock=clock, read_only=read_only)

    async def open(self) -> None:
        if not self.read_only:
            self._lock = files.take_lock(self.path)
        try:
            files.check(self.path, read_only=self.read_only)
            self._db = files.connect(self.path, read_only=self.read_only)
            if not self.read_only:
                files.move_log(self._db)
                if found := files.damage(self._db):
                    raise ValueError(files.damaged(found))
                files.begin_history(self._db)
            self._load()
            if not self.read_only:
                self._take_over_notes()
                self._settle_unreadable()
                log = files.wal_of(self.path)
                if self.durability == "power":
                    self._log = disk.File(os.open(log, os.O_RDONLY | os.O_CLOEXEC))
                    self._safe = self._db.total_changes
                self._files = {file: files.identity(file) for file in (self.path, log)}
            self._db.execute("PRAGMA busy_timeout = 0")  # methods wait without blocking: see `sqlite`
        except (OSError, sqlite3.Error, ValueError, StoreUnavailable) as error:
            await self.close()
            cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
            is_damage = isinstance(cause, sqlite3.Error) and files.is_damage(cause)
            why = files.damaged(str(cause)) if is_damage else str(error)
            files.refuse(self.path, f"the database cannot be used: {why}", error)
        except BaseException:
            await self.close()
            raise

    def _load(self) -> None:
        """Read the database's metadata."""
        self._last_event = self._stored_last_event()
        meta: dict[str, Any] = dict(self._rows("SELECT name, value FROM meta"))
        self.secret, self.epoch = meta["secret"], meta["epoch"]
        self._lost_event = int(meta.get("lost_event", 0))
        self._resume_clocks(meta.get("clock"))

    @abc.abstractmethod
    def _take_over_notes(self) -> None: ...

    def _settle_unreadable(self) -> None:
        """Make sure that no worker gets an unreadable call, and that no proxy waits for one."""
        rows = self._rows("SELECT seq, record FROM call WHERE claimable_at IS NOT NULL OR proxy_id IS NOT NULL")
        if lost := [(seq,) for seq, record in rows if records.read(Call, record) is None]:
            with Transaction(self) as tx:
                tx.db.executemany("UPDATE call SET claimable_at = NULL, proxy_id = NULL WHERE seq = ?", lost)

    def _new_clocks(self) -> Clocks:
        return Clocks(lambda: self.clock(), lambda: self.uptime())  # both may be replaced

    def _resume_clocks(self, noted: str | None) -> None:
        self._clocks = self._new_clocks()
        if noted is None:  # as in a copy: the last event is the last known use
            rows = self._rows("SELECT created_at FROM event ORDER BY event_id DESC LIMIT 1")
            note = self._clocks.note._replace(boot="")
            noted = (note._replace(seen=rows[0][0]) if rows else note).text()
        is_continuous = self._clocks.resume(noted)
        if self.read_only:
            return
        with Transaction(self) as tx:
            note_time(tx, self._clocks.note)
            if not is_continuous:
                # Leases of the former steady time are limited to the longest lease from now.
                files.cut_leases(tx.db, self._clocks.steady() + LONGEST_LEASE)

    async def close(self) -> None:
        self.notifier.close()
        if self._db:
            if self._files:  # it was opened completely, for writing
                files.end_history(self._db)
            self._db.close()
        if self._lock:
            self._lock.release()
        self._db = self._log = self._lock = None
        self.locked_since = None
        self._files, self._file_error, self._damage = {}, "", ""
        self._sessions.clear()
        self._leases.clear()
        self._conversation_locks.clear()
        self._writes.clear()
        self._calls.clear()

    async def ping(self) -> None:
        if self.read_only:
            self._rows("SELECT 1 FROM session LIMIT 1")
            return
        self._check_files()
        with Transaction(self) as tx:
            tx.db.execute("INSERT OR REPLACE INTO meta VALUES ('ping', ?)", (tx.now,))
        if self._damage:
            raise StoreUnavailable(f"store {self.path}: it is damaged: {self._damage}")

    def _check_files(self) -> None:
        """Raises StoreUnavailable if writes would be lost because a file was replaced. Nothing is written then until
        the original files are back."""
        replaced = next((file for file, known in self._files.items() if files.identity(file) != known), None)
        self._file_error = f"{replaced} was deleted or replaced while in use: restart the proxy" if replaced else ""
        if not replaced and self._files and not os.access(self.path, os.W_OK):
            self._file_error = f"{self.path} is no longer writable"
        self._check_writable()

    async def sync(self) -> None:
        written = self._connection.total_changes
        if not self.read_only:
            self._check_files()
        if self._log is None or self._safe >= written:
            return
        try:
            await self._log.begin_flush()
        except OSError as error:
            raise NotDurable(
                f"store {self.path}: what was written last may not survive a power failure: {error}"
            ) from error
        self._safe = max(self._safe, written)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreUnavailable(f"store {self.path}: not open")
        return self._db

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if files.is_damage(error):
            self._damage = str(error)
        raise (StoreBusy if is_busy else StoreUnavailable)(f"store {self.path}: {error}") from error

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreUnavailable(f"store {self.path}: opened read-only")
        if self._db is None:
            raise StoreUnavailable(f"store {self.path}: not open")
        if self._file_error:
            raise StoreUnavailable(f"store {self.path}: {self._file_error}")

    def _after_commit(self, tx: Transaction) -> None:
        """Update the state after a committed transaction, and wake waiters."""
        self.locked_since = None
        if self.on_change is not None:
            for session in tx.changed:
                self.on_change(session)
        self._last_event += len(tx.events)
        self._forget_calls(tx.calls, tx.changed)
        if self.notifier.has_waiters:
            calls = [(c.session, c.call_id, None if states.claimable_at(c) is None else c.name) for c in tx.calls]
            self.notifier.notify({session for _, session, *_ in tx.events}, calls, tx.changed)

    def _check_waiting(self) -> None:
        if self._db is None:
            raise StoreUnavailable(f"store {self.path}: not open")
        if self.read_only:
            raise StoreUnavailable("the store was opened read-only, and is not notified of other processes' writes")

    def _forget_calls(self, written: Collection[Call], changed: Collection[str]) -> None:
        """Drop cached calls: the written ones, and those of the sessions `changed`, which may have been deleted."""
        for call in written:
            self._calls.pop(call.call_id)
        if changed:
            self._calls.clear()

    def _note(self, session: str, turn_ids: Collection[str], keys: Collection[bytes]) -> None:
        """Note a write of these turns and keys to the session's ledger."""
        changes = self._writes.get(session) or Changes(0)
        if not changes.revision and not turn_ids:
            return  # without turns, no look-up has results
        changes.note(changes.revision, next(self._next_revision), turn_ids, keys)
        changes.shrink(self._writes.limit // 2)
        self._writes.put(session, changes, changes.size)

    def _known_session(self, name: str) -> KnownSession:
        if (known := self._sessions.get(name)) is None:
            rows = self._rows("SELECT record FROM session WHERE name = ?", name)
            session = records.read(Session, rows[0][0]) if rows else None
            known = KnownSession(session, bool(rows) and session is None)
            if not self.read_only:
                self._remember_session(name, known, len(rows[0][0]) if rows else 0)
        return known

    def _remember_session(self, name: str, known: KnownSession, size: int) -> None:
        """`size`: of the record as JSON."""
        self._sessions.put(name, known, records.memory_of(size))

    def _with_parts(self, calls: Sequence[Call]) -> list[Call]:
        """The calls with the parts of their results."""
        return [
            records.with_parts(call, self._rows("SELECT parts FROM call WHERE call_id = ?", call.call_id)[0][0])
            if call.media
            else call
            for call in calls
        ]

    def _rows(self, statement: str, *values: Any) -> Rows:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._fail(error)

    def _each_row(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """As `_rows`, row by row. No write is allowed until the iterator is exhausted or deleted."""
        try:
            yield from self._connection.execute(statement, values)
        except sqlite3.Error as error:
            self._fail(error)

    def _stored_last_event(self) -> int:
        return int(self._rows(files.LAST_EVENT)[0][0])
