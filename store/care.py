"""Maintenance of a SQLite store: backup while it is used, check, and recovery.

The functions need no proxy. While `recover` runs, no proxy may use the file.
"""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from store.backends import _records as records
from store.backends import _sqlite_file as files
from store.base import StoreError
from store.models import CachedTools, Call, Record, Response, Session, Turn

_MODELS: dict[str, tuple[type[Record], str]] = {
    "session": (Session, "name"),
    "turn": (Turn, "turn_id"),
    "call": (Call, "call_id"),
    "cached_tools": (CachedTools, "cached_content"),
    "response": (Response, "response_id"),
}
"""Tables with records: the model, and the column that identifies a record."""

_DELETE_ORPHANS = (
    "DELETE FROM call WHERE turn NOT IN (SELECT seq FROM turn)",
    "DELETE FROM turn_key WHERE turn NOT IN (SELECT seq FROM turn)",
    "DELETE FROM given_call WHERE response NOT IN (SELECT seq FROM response)",
    "DELETE FROM unsent WHERE (session, response_id) NOT IN (SELECT session, response_id FROM response)",
    "DELETE FROM conversation WHERE head NOT IN (SELECT seq FROM response)",
    "INSERT OR IGNORE INTO thread SELECT DISTINCT thread, session, unixepoch() FROM response",
)
"""Deletes rows that belong to missing records, and threads without responses."""

_NEW_HISTORY = (
    "UPDATE meta SET value = lower(hex(randomblob(4))) WHERE name = 'epoch'",
    "DELETE FROM meta WHERE name IN ('open', 'clock')",
)
"""The copy gets a new epoch, so that clients with a cursor notice that later events are missing."""

_MAX_NUMBER = 1 << 20
"""The highest row number to look for if the last one is unknown."""

_LAST_INDEXED = "SELECT max(+event_id) FROM event"
"""Reads the index, which may be intact if the table is not."""


class CareError(StoreError):
    """The operation failed; the message says why, and what to do."""


class Recovered(NamedTuple):
    """`saved`: the number of rows of each table. `damaged`: the old file."""

    saved: dict[str, int]
    damaged: Path


def database_of(url: str) -> Path:
    """The file that a store's URL names. Raises CareError."""
    path = url.removeprefix("sqlite:///")
    if path in (url, ""):
        raise CareError(f"{url} has no file: this works only for a sqlite:/// store")
    return Path(path).expanduser().absolute()


def backup(path: Path, target: Path) -> None:
    """Copy a consistent state of the database, including its log, to a new file that only the user can read. Does not
    block writers. Raises CareError."""
    if target.exists():
        raise CareError(f"{target} exists already: name a new file, or move it away")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with _reading(path) as db, contextlib.closing(sqlite3.connect(temporary, autocommit=True)) as copy:
            db.backup(copy)
            copy.execute("PRAGMA journal_mode = delete")  # one file, with nothing beside it
            if found := files.damage(copy):
                raise CareError(f"{path}: {files.damaged(found)}")
            _run(copy, _NEW_HISTORY)
        _flush(temporary)
        os.rename(temporary, target)
        _flush(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise CareError(f"{target} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check(path: Path) -> list[str]:
    """The problems of the database, found by SQLite and in its records; empty: none. Raises CareError."""
    problems = []
    with _reading(path) as db:
        try:
            results = [row[0] for row in db.execute("PRAGMA integrity_check")]
            problems += [" ".join(text.split()) for text in results if text != "ok"]
        except sqlite3.DatabaseError as error:
            problems.append(str(error))
        for table, (model, name) in _MODELS.items():
            try:
                for named, text in db.execute(f"SELECT {name}, record FROM {table}"):
                    if records.read(model, text, log=False) is None:
                        problems.append(f"{table} {named}: its record cannot be read")
            except sqlite3.DatabaseError as error:
                problems.append(f"table {table}: {error}")
    return problems


def recover(path: Path) -> Recovered:
    """Replace the database by a new one with all readable records. The old file is kept beside it. Raises CareError,
    StoreUnusable: a proxy uses it."""
    lock = files.take_lock(path)
    temporary = path.with_name(f".{path.name}.recovered")
    try:
        temporary.unlink(missing_ok=True)
        with _reading(path) as db:
            saved = _save(db, temporary)
        _flush(temporary)
        damaged = _move_aside(path)
        os.replace(temporary, path)
        _flush(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise CareError(f"{path} cannot be recovered: {error}. Move it away, and start with a backup of it") from error
    finally:
        temporary.unlink(missing_ok=True)
        lock.release()
    return Recovered(saved, damaged)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        files.check(path, read_only=True)
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, autocommit=True)
    except sqlite3.Error as error:
        raise CareError(f"{path} cannot be read: {error}") from error
    with contextlib.closing(db):
        yield db


def _save(db: sqlite3.Connection, temporary: Path) -> dict[str, int]:
    """Copy all readable rows into a new file. Returns the number of rows of each table."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    files.check_version(temporary, version, files.APPLICATION_ID)
    with contextlib.closing(files.create(temporary, version)) as new:
        tables = [name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables.remove("sqlite_sequence")
        new.execute("BEGIN")
        for table in tables:
            for row in _rows(db, new, table):
                new.execute(f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(row))})", row)
        _run(new, (*_DELETE_ORPHANS, *_NEW_HISTORY))
        _keep_numbers(db, new)
        new.execute("COMMIT")
        return {table: new.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def _rows(db: sqlite3.Connection, new: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """The readable rows of a table. An unreadable page hides the rows after it: they are looked up by their number, or
    read from the end if they have none. `new` has the table's columns."""
    columns = new.execute(f"SELECT name, type, pk FROM pragma_table_info('{table}')").fetchall()
    names = [name for name, _, _ in columns]
    keys = [name for name, _, place in sorted(columns, key=lambda column: column[2]) if place]
    model = _MODELS[table][0] if table in _MODELS else None
    number = 0

    def read(where: str = "", descending: str = "") -> Iterator[tuple[Any, ...]]:
        nonlocal number
        order = ", ".join(f"{key} {descending}" for key in keys)
        for row in db.execute(f"SELECT * FROM {table} {where} ORDER BY {order}"):
            if is_numbered:
                number = row[names.index(keys[0])]
            if model is None or records.read(model, row[names.index("record")], log=False) is not None:
                yield row

    is_numbered = ("INTEGER", 1) in (column[1:] for column in columns)
    with contextlib.suppress(sqlite3.DatabaseError):
        yield from read()
        return
    if not is_numbered:
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from read(descending="DESC")
        return
    end = _last_number(db, table, keys[0])
    while number < end:
        number += 1
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from read(f"WHERE {keys[0]} >= {number}")
            return


def _last_number(db: sqlite3.Connection, table: str, key: str) -> int:
    number = _largest(
        db,
        f"SELECT max({key}) FROM {table}",
        f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
        f"SELECT max(+{key}) FROM {table}",  # as `_LAST_INDEXED`
    )
    return _MAX_NUMBER if number is None else number


def _largest(db: sqlite3.Connection, *statements: str) -> int | None:
    """The number from the first of the statements that runs and returns one."""
    for statement in statements:
        with contextlib.suppress(sqlite3.DatabaseError):
            if (row := db.execute(statement).fetchone()) and row[0] is not None:
                return int(row[0])
    return None


def _keep_numbers(db: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Do not reuse numbers of events, which are also the versions of sessions."""
    numbers = dict(new.execute("SELECT name, seq FROM sqlite_sequence"))
    with contextlib.suppress(sqlite3.DatabaseError):
        for name, number in db.execute("SELECT name, seq FROM sqlite_sequence"):
            numbers[name] = max(number, numbers.get(name, 0))
    last = [_largest(one, statement) for one in (db, new) for statement in (files.LAST_EVENT, _LAST_INDEXED)]
    last += [numbers.pop("event", 0), _largest(new, "SELECT max(record ->> 'version') FROM session")]
    last_event = max(number or 0 for number in last)
    if _largest(new, "SELECT sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE name = 'event'"):
        numbers["event"] = last_event
    else:
        new.execute("INSERT OR REPLACE INTO meta VALUES ('last_event', ?)", (last_event,))
    new.execute("DELETE FROM sqlite_sequence")
    new.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", numbers.items())


def _run(db: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        try:
            db.execute(statement)
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):  # a table of a later version
                raise


def _move_aside(path: Path) -> Path:
    """Keep the file and its log under another name. The log is moved: SQLite must not apply it to the new file."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
    damaged_path = next(name for name in names if not name.exists())
    os.link(path, damaged_path)
    with contextlib.suppress(FileNotFoundError):
        os.rename(files.wal_of(path), files.wal_of(damaged_path))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    return damaged_path


def _flush(path: Path) -> None:
    """Write a file, or a folder with its names, to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
