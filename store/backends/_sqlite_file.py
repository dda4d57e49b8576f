"""A database file of toolgraft: its checks, lock, tables and connection.

No function changes a file before it is known to be toolgraft's own, in a supported version.
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import filelock

from store.backends import _clocks as clocks
from store.backends import _sqlite_schema as schema
from store.base import StoreUnusable

LOG_PAGES = 1000
"""In pages: the commit that makes the log longer moves it into the database, and waits for the disk. No other
connection does so: SQLite before 3.51.3 could lose a commit that restarts the log while another connection begins to
move it. The log grows while a reader stays, and is truncated afterwards."""


def refuse(path: Path, why: str, cause: Exception | None = None) -> NoReturn:
    raise StoreUnusable(f"store {path}: {why}") from cause


def identity(path: Path) -> tuple[int, int] | None:
    """Distinguishes a file from another file of its name; None: no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def damage(db: sqlite3.Connection) -> str:
    """The first problem found by SQLite's quick check; empty: none."""
    try:
        ((found,),) = db.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        found = str(error)
    return "" if found == "ok" else " ".join(str(found).split())


def damaged(problem: str) -> str:
    return f"it is damaged: {problem}. `toolgraft recover` saves what can be read"


def is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def take_lock(path: Path) -> filelock.FileLock:
    """Create the folder if needed, and make sure that no other process writes the database. Raises StoreUnusable."""
    lock = filelock.FileLock(f"{path}.lock", mode=0o600, blocking=False, thread_local=False)
    try:
        for folder in reversed([folder for folder in path.parents if not folder.exists()]):
            folder.mkdir(mode=0o700, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        refuse(path, "another toolgraft uses it; stop that one, or give this one its own graft_store", error)
    except (OSError, NotImplementedError) as error:
        refuse(path, f"its folder is not writable ({error})", error)
    return lock


def check(path: Path, *, read_only: bool) -> None:
    """Check the file without opening it as a database, which would change it. Raises StoreUnusable."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            refuse(path, "this is not a file")
        if not os.access(path, os.R_OK if read_only else os.R_OK | os.W_OK):
            refuse(path, "the file is not readable and writable")
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError as error:
        if read_only:
            refuse(path, "there is no such file", error)
        return
    except OSError as error:
        refuse(path, f"the file cannot be read ({error})", error)
    if not header and not read_only:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        refuse(path, "this is not a SQLite database; move it away, or name another file in graft_store")
    check_version(path, int.from_bytes(header[60:64]), int.from_bytes(header[68:72]))
    page_size = int.from_bytes(header[16:18])
    size = int.from_bytes(header[28:32]) * (65536 if page_size == 1 else page_size)
    if status.st_size < size and not wal_of(path).exists():
        refuse(path, f"the database is damaged: {status.st_size} bytes are left of {size}")


def check_version(path: Path, version: int, application_id: int) -> None:
    if version > schema.VERSION:
        refuse(
            path,
            f"the database has version {version}, from a newer toolgraft; this one knows version {schema.VERSION}. "
            "Use the newer one, or name another file in graft_store",
        )
    if application_id != schema.APPLICATION_ID:
        refuse(path, "the database belongs to another program; name another file in graft_store")


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection to a file that passed `check`, with its tables up to date.

    Raises StoreUnusable, sqlite3.Error, OSError.
    """
    if read_only:
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, autocommit=True)
        with _closed_on_error(db):
            if (version := _number(db, "user_version")) != schema.VERSION:
                check_version(path, version, schema.APPLICATION_ID)
                refuse(
                    path, f"the database has version {version}; start the proxy once to bring it to {schema.VERSION}"
                )
        return db
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    created = [file for file in beside if not file.exists()]
    db = sqlite3.connect(path, autocommit=True)
    with _closed_on_error(db):
        is_new = _is_new(db, path, created)
        if is_new:
            db.execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
        else:
            _tune(db)
        _migrate(db)
        # A new file gets its tables before its log, so that its header always identifies its owner.
        _tune(db)
    return db


def connect_memory() -> sqlite3.Connection:
    """A connection to a new database without a file. Any thread may close it, as the garbage collector does."""
    db = sqlite3.connect(":memory:", autocommit=True, check_same_thread=False)
    _migrate(db)
    return db


def create(path: Path, version: int) -> sqlite3.Connection:
    """A new database of that version, without a log. Raises sqlite3.Error, OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, autocommit=True)
    with _closed_on_error(db):
        db.execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
        db.executescript(f"BEGIN; {' '.join(schema.MIGRATIONS[:version])} PRAGMA user_version = {version}; COMMIT;")
    return db


def _is_new(db: sqlite3.Connection, path: Path, created: list[Path]) -> bool:
    """Whether the database has no tables yet. Also refuses a version that is too new, because the log may contain a
    newer version than the header; nothing is changed then. `created`: the files that opening the database creates."""
    # Closing must not move the contents of the log into the file.
    db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
    try:
        if _number(db, "schema_version") == 0:
            return True
        check_version(path, _number(db, "user_version"), _number(db, "application_id"))
        return False
    except BaseException:
        db.close()
        for file in created:
            file.unlink(missing_ok=True)
        raise
    finally:
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, False)


def begin_history(db: sqlite3.Connection) -> None:
    """Give the store a new epoch if it may have lost its latest writes: it was not closed, and the machine was rebooted
    since. Killing only the process loses nothing."""
    boot = clocks.boot()
    db.execute("PRAGMA synchronous = full")  # for this transaction, so that the mark survives a power failure
    db.execute("BEGIN IMMEDIATE")
    open_mark = db.execute("SELECT value FROM meta WHERE name = 'open'").fetchone()
    if open_mark is not None and open_mark[0] != boot:
        db.execute("UPDATE meta SET value = lower(hex(randomblob(4))) WHERE name = 'epoch'")
    db.execute("INSERT OR REPLACE INTO meta VALUES ('open', ?)", (boot,))
    db.execute("COMMIT")
    db.execute("PRAGMA synchronous = normal")


def end_history(db: sqlite3.Connection) -> None:
    """Note that the store was closed properly: the log was moved into the file, and no write can be lost."""
    with contextlib.suppress(sqlite3.Error):
        db.execute("DELETE FROM meta WHERE name = 'open'")


def cut_leases(db: sqlite3.Connection, latest: float) -> None:
    """Limit the leases of calls to `latest`."""
    db.execute(
        "UPDATE call SET claimable_at = ?1, record = json_set(record, '$.lease_until', ?1) WHERE claimable_at > ?1",
        (latest,),
    )


def _tune(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = wal")
    db.execute("PRAGMA synchronous = normal")
    db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    db.execute(f"PRAGMA journal_size_limit = {2 * LOG_PAGES * schema.PAGE_SIZE}")


def move_log(db: sqlite3.Connection) -> None:
    """Move the log into the database, as far as possible without waiting for readers."""
    before = _number(db, "busy_timeout")
    db.execute("PRAGMA busy_timeout = 0")
    with contextlib.suppress(sqlite3.OperationalError):  # no space: the writes stay in the log
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute(f"PRAGMA busy_timeout = {before}")


def _migrate(db: sqlite3.Connection) -> None:
    """Run all missing migrations in one transaction: one wait for the disk, and no intermediate version is visible."""
    missing = schema.MIGRATIONS[_number(db, "user_version") :]
    if missing:
        db.executescript(f"BEGIN IMMEDIATE; {' '.join(missing)} PRAGMA user_version = {schema.VERSION}; COMMIT;")


def _number(db: sqlite3.Connection, pragma: str) -> int:
    number: int = db.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number


@contextlib.contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        db.close()
        raise
