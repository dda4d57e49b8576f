"""The care of a SQLite store: a copy of it while it is used, what is wrong with it, and what can be saved of it.

Everything here works on the file, and needs no proxy; `recover` needs that none has it.
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
from store.backends import _sqlite_schema as schema
from store.base import StoreError
from store.models import CachedTools, Call, Record, Response, Session, Turn

_MODELS: dict[str, tuple[type[Record], str]] = {
    "session": (Session, "name"),
    "turn": (Turn, "turn_id"),
    "call": (Call, "call_id"),
    "cached_tools": (CachedTools, "cached_content"),
    "response": (Response, "response_id"),
}
"""Tables with records, and the column that names each."""

_BELONGS = (
    "DELETE FROM call WHERE turn NOT IN (SELECT seq FROM turn)",
    "DELETE FROM turn_key WHERE turn NOT IN (SELECT seq FROM turn)",
    "DELETE FROM request WHERE turn NOT IN (SELECT seq FROM turn)",
    "DELETE FROM given_call WHERE response NOT IN (SELECT seq FROM response)",
    "DELETE FROM unsent WHERE (session, response_id) NOT IN (SELECT session, response_id FROM response)",
    "DELETE FROM conversation WHERE head NOT IN (SELECT seq FROM response)",
    "INSERT OR IGNORE INTO thread SELECT DISTINCT thread, session, unixepoch() FROM response",
)
"""What is left of records that are gone goes as well; a thread lives for as long as one of its responses."""

_NEW_HISTORY = (
    "UPDATE meta SET value = lower(hex(randomblob(4))) WHERE name = 'epoch'",
    "DELETE FROM meta WHERE name IN ('open', 'clock')",
)
"""What was written since is not in the copy: who follows events is told so."""

_FAR = 1 << 20
"""Up to which number rows are looked for where the last one is not known."""


class CareError(StoreError):
    """It cannot be done; the message says why, and what to do."""


class Recovered(NamedTuple):
    """How many rows of each table were saved, and where the file is that they were saved from."""

    saved: dict[str, int]
    damaged: Path


def database_of(url: str) -> Path:
    """The file that a store's URL names. Raises CareError."""
    path = url.removeprefix("sqlite:///")
    if path in (url, ""):
        raise CareError(f"{url} has no file: only a sqlite:/// store can be looked after")
    return Path(path).expanduser().absolute()


def backup(path: Path, target: Path) -> None:
    """Copy the database as it is at one moment, what its log holds included, to a new file of the user's alone. Nobody
    who writes is held up. Raises CareError."""
    if target.exists():
        raise CareError(f"{target} is there already: name a new file, or move it away")
    made = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with _reading(path) as db, contextlib.closing(sqlite3.connect(made, autocommit=True)) as copy:
            db.backup(copy)
            copy.execute("PRAGMA journal_mode = delete")  # one file, with nothing beside it
            if found := files.damage(copy):
                raise CareError(f"{path}: {files.damaged(found)}")
            _run(copy, _NEW_HISTORY)
        _settled(made)
        os.rename(made, target)
        _settled(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise CareError(f"{target} cannot be made: {error}") from error
    finally:
        made.unlink(missing_ok=True)


def check(path: Path) -> list[str]:
    """What is wrong with the database, by SQLite and by its records; nothing if the list is empty. Raises CareError."""
    wrong = []
    with _reading(path) as db:
        try:
            found = [row[0] for row in db.execute("PRAGMA integrity_check")]
            wrong += [" ".join(text.split()) for text in found if text != "ok"]
        except sqlite3.DatabaseError as error:
            wrong.append(str(error))
        for table, (model, name) in _MODELS.items():
            try:
                for named, text in db.execute(f"SELECT {name}, record FROM {table}"):
                    if records.read(model, text, tell=False) is None:
                        wrong.append(f"{table} {named}: its record cannot be read")
            except sqlite3.DatabaseError as error:
                wrong.append(f"table {table}: {error}")
    return wrong


def recover(path: Path) -> Recovered:
    """Make a new database of all that can be read, and put it in the place of the old one, which is kept beside it.
    Raises CareError, StoreUnusable: a proxy uses it."""
    lock = files.take_lock(path)
    made = path.with_name(f".{path.name}.recovered")
    try:
        made.unlink(missing_ok=True)
        with _reading(path) as db:
            saved = _save(db, made)
        _settled(made)
        damaged = _aside(path)
        os.replace(made, path)
        _settled(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise CareError(f"{path} cannot be recovered: {error}. Move it away, and start with a backup of it") from error
    finally:
        made.unlink(missing_ok=True)
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


def _save(db: sqlite3.Connection, made: Path) -> dict[str, int]:
    """Copy what can be read into a new file. Returns how many rows of each table."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    files.check_version(made, version, schema.APPLICATION_ID)
    with contextlib.closing(files.create(made, version)) as new:
        tables = [name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables.remove("sqlite_sequence")
        new.execute("BEGIN")
        for table in tables:
            for row in _rows(db, new, table):
                new.execute(f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(row))})", row)
        _run(new, (*_BELONGS, *_NEW_HISTORY))
        _keep_numbers(db, new)
        new.execute("COMMIT")
        return {table: new.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def _rows(db: sqlite3.Connection, new: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a table that can be read. A page that cannot be read hides those behind it: these are looked for by
    their number, or where they have none, from the end. `new` knows the table's form."""
    columns = new.execute(f"SELECT name, type, pk FROM pragma_table_info('{table}')").fetchall()
    names = [name for name, _, _ in columns]
    keys = [name for name, _, place in sorted(columns, key=lambda column: column[2]) if place]
    model = _MODELS[table][0] if table in _MODELS else None
    seen = 0

    def read(where: str = "", descending: str = "") -> Iterator[tuple[Any, ...]]:
        nonlocal seen
        order = ", ".join(f"{key} {descending}" for key in keys)
        for row in db.execute(f"SELECT * FROM {table} {where} ORDER BY {order}"):
            if is_numbered:
                seen = row[names.index(keys[0])]
            if model is None or records.read(model, row[names.index("record")], tell=False) is not None:
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
    while seen < end:
        seen += 1
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from read(f"WHERE {keys[0]} >= {seen}")
            return


def _last_number(db: sqlite3.Connection, table: str, key: str) -> int:
    for statement in (f"SELECT max({key}) FROM {table}", f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):
        with contextlib.suppress(sqlite3.DatabaseError):
            if (row := db.execute(statement).fetchone()) and row[0] is not None:
                return int(row[0])
    return _FAR


def _keep_numbers(db: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Numbers that were given once are not given again: events', and with them versions of sessions."""
    numbers = dict(new.execute("SELECT name, seq FROM sqlite_sequence"))
    with contextlib.suppress(sqlite3.DatabaseError):
        for name, number in db.execute("SELECT name, seq FROM sqlite_sequence"):
            numbers[name] = max(number, numbers.get(name, 0))
    (version,) = new.execute("SELECT max(record ->> 'version') FROM session").fetchone()
    numbers["event"] = max(numbers.get("event", 0), version or 0)
    new.execute("DELETE FROM sqlite_sequence")
    new.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", numbers.items())


def _run(db: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        try:
            db.execute(statement)
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):  # a table of a later version
                raise


def _aside(path: Path) -> Path:
    """Keep the file and its log under another name. The log goes from its place: it must never be taken for another
    file's."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
    kept = next(name for name in names if not name.exists())
    os.link(path, kept)
    with contextlib.suppress(FileNotFoundError):
        os.rename(files.wal_of(path), files.wal_of(kept))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    return kept


def _settled(path: Path) -> None:
    """The disk has the file, or the folder with its names."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
