"""A database file of toolgraft: its tables and their migrations, checks, lock and connection.

No function changes a file before it is known to be toolgraft's own, in a supported version."""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import filelock

from store.backends import _clocks as clocks
from store.base import StoreUnusable

APPLICATION_ID = 0x746F6F6C

MIGRATIONS = (
    f"""
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE session (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE turn (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, turn_id TEXT NOT NULL, user_key BLOB NOT NULL,
        bound INTEGER NOT NULL, created_at REAL NOT NULL, record TEXT NOT NULL, UNIQUE (session, turn_id)
    );
    CREATE INDEX turn_unbound ON turn (session, user_key) WHERE bound = 0;
    CREATE INDEX turn_age ON turn (created_at);
    CREATE TABLE turn_key (
        session TEXT NOT NULL, key BLOB NOT NULL, delivered INTEGER NOT NULL, turn INTEGER NOT NULL,
        PRIMARY KEY (session, key, delivered, turn)
    ) WITHOUT ROWID;
    CREATE INDEX turn_key_turn ON turn_key (turn);
    CREATE TABLE call (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, call_id TEXT NOT NULL UNIQUE, session TEXT NOT NULL,
        turn INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL
    );
    CREATE INDEX call_session ON call (session);
    CREATE INDEX call_turn ON call (turn);
    CREATE INDEX call_open ON call (status, session) WHERE status IN ('pending', 'running');
    CREATE TABLE cached_tools (
        session TEXT NOT NULL, cached_content TEXT NOT NULL, created_at REAL NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (session, cached_content)
    ) WITHOUT ROWID;
    CREATE TABLE event (
        event_id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, type TEXT NOT NULL, data TEXT NOT NULL,
        created_at REAL NOT NULL
    );
    CREATE INDEX event_session ON event (session);
    """,
    """
    ALTER TABLE call ADD COLUMN free_at REAL;
    UPDATE call SET free_at = 0 WHERE status = 'pending';
    CREATE INDEX call_free ON call (session) WHERE free_at IS NOT NULL;
    """,
    """
    CREATE TABLE response (
        seq INTEGER PRIMARY KEY, session TEXT NOT NULL, response_id TEXT NOT NULL, previous INTEGER,
        thread INTEGER NOT NULL, record TEXT NOT NULL, tools TEXT, document TEXT, UNIQUE (session, response_id)
    );
    CREATE INDEX response_previous ON response (previous);
    CREATE INDEX response_thread ON response (thread);
    CREATE TABLE thread (seq INTEGER PRIMARY KEY, session TEXT NOT NULL, used_at REAL NOT NULL);
    CREATE INDEX thread_session ON thread (session);
    CREATE INDEX thread_age ON thread (used_at);
    CREATE TABLE conversation (
        session TEXT NOT NULL, name TEXT NOT NULL, head INTEGER NOT NULL, PRIMARY KEY (session, name)
    ) WITHOUT ROWID;
    CREATE INDEX conversation_head ON conversation (head);
    CREATE TABLE given_call (
        session TEXT NOT NULL, call_id TEXT NOT NULL, response INTEGER NOT NULL, part TEXT NOT NULL,
        PRIMARY KEY (session, call_id)
    ) WITHOUT ROWID;
    CREATE INDEX given_call_response ON given_call (response);
    """,
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    INSERT INTO meta VALUES ('secret', randomblob(32)), ('epoch', lower(hex(randomblob(4))));
    """,
    """
    ALTER TABLE call RENAME COLUMN free_at TO claimable_at;
    ALTER TABLE call ADD COLUMN proxy_id TEXT;
    CREATE INDEX call_proxy ON call (proxy_id) WHERE proxy_id IS NOT NULL;
    CREATE INDEX call_leased ON call (claimable_at) WHERE claimable_at > 0;
    WITH known AS (
        SELECT call.seq, status, claimable_at, call.record ->> 'loop_id' AS loop_id,
            call.record ->> 'approval' AS approval,
            call.record ->> 'surface' = 'live' OR NOT turn.record ->> 'delivered' AS undelivered,
            session.record ->> ('$.toolset.rules."' || call.name || '"') AS rules
        FROM call JOIN turn ON turn.seq = call.turn LEFT JOIN session ON session.name = call.session
        WHERE status IN ('pending', 'running')
    ), owned AS (
        SELECT *, CASE WHEN claimable_at > 0 OR rules ->> '$.executor.type' = 'worker' THEN 'workers'
            WHEN status = 'running' OR loop_id IS NOT NULL THEN 'loop' ELSE 'hand' END AS owner
        FROM known
    ), given AS (
        SELECT *, owner = 'workers' AND (claimable_at > 0 OR claimable_at = 0
                AND (approval = 'approved' OR NOT coalesce(rules ->> 'approval', 0))) AS released,
            coalesce(loop_id, iif(undelivered AND owner <> 'hand', 'before', NULL)) AS proxy
        FROM owned
    )
    UPDATE call SET proxy_id = proxy, claimable_at = iif(released, given.claimable_at, NULL), record = json_set(
        record, '$.owner', owner, '$.released', json(iif(released, 'true', 'false')),
        '$.redeliver', json(iif(rules ->> 'idempotent', 'true', 'false')), '$.proxy_id', proxy
    ) FROM given WHERE given.seq = call.seq;
    """,
    """
    UPDATE session SET record = json_set(record, '$.version', 1);
    """,
    """
    CREATE TABLE plain_key (
        session TEXT NOT NULL, key BLOB NOT NULL, noted INTEGER NOT NULL, chain BLOB NOT NULL,
        PRIMARY KEY (session, key)
    ) WITHOUT ROWID;
    CREATE INDEX plain_key_noted ON plain_key (noted);
    """,
    """
    CREATE TABLE proxy (proxy_id TEXT PRIMARY KEY, seen_at REAL NOT NULL) WITHOUT ROWID;
    CREATE TABLE request (
        session TEXT NOT NULL, key BLOB NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (session, key, turn)
    ) WITHOUT ROWID;
    CREATE INDEX request_turn ON request (turn);
    """,
    """
    DROP INDEX IF EXISTS plain_key_noted;
    """,
    """
    CREATE TABLE unsent (
        seq INTEGER PRIMARY KEY, session TEXT NOT NULL, response_id TEXT NOT NULL, key BLOB NOT NULL,
        proxy_id TEXT NOT NULL, broke_off REAL, kept_at REAL NOT NULL, answer TEXT NOT NULL,
        UNIQUE (session, response_id)
    );
    """,
    """
    DROP INDEX turn_unbound;
    CREATE INDEX turn_unbound ON turn (session, user_key) WHERE bound = 0 AND user_key <> x'';
    ALTER TABLE turn ADD COLUMN request_key BLOB;
    UPDATE turn SET request_key = request.key FROM request WHERE request.turn = turn.seq;
    DROP TABLE request;
    CREATE INDEX turn_request ON turn (session, request_key) WHERE request_key IS NOT NULL;
    """,
    """
    INSERT OR REPLACE INTO meta SELECT 'last_event', seq FROM sqlite_sequence WHERE name = 'event';
    CREATE TABLE kept_event (
        event_id INTEGER PRIMARY KEY, session TEXT NOT NULL, type TEXT NOT NULL, data TEXT NOT NULL,
        created_at REAL NOT NULL
    );
    INSERT INTO kept_event SELECT event_id, session, type, data, created_at FROM event;
    DROP TABLE event;
    ALTER TABLE kept_event RENAME TO event;
    CREATE INDEX event_session ON event (session);
    """,
    """
    CREATE INDEX call_name ON call (name);
    CREATE INDEX call_not_done ON call (status) WHERE status IN ('failed', 'denied', 'expired');
    CREATE INDEX unsent_key ON unsent (session, key);
    """,
    """
    ALTER TABLE call ADD COLUMN parts TEXT;
    """,
    """
    DROP INDEX turn_unbound;
    ALTER TABLE turn DROP COLUMN user_key;
    ALTER TABLE turn DROP COLUMN bound;
    """,
)
"""The script at index n migrates a database from `user_version` n to n + 1.

`record` is the whole record as JSON; the other columns are for look-ups. `turn.seq` and `call.seq` are the order of
saving. `call.claimable_at` is the time from which the call can be claimed, or NULL. `call.proxy_id` is NULL once a call
is final. Migrated open calls without an owner belong to the workers if workers ran them, or to a proxy that is gone if
a loop waited for them or their turn was never delivered. `call.parts`: the parts of the result as JSON, which may be
megabytes and are rarely read with the record.

`turn.request_key`: of an undelivered turn, for retries; else NULL. `thread.seq` is the `seq` of its first response;
threads have their own rows because small rows are cheaper to update. `response.record` has no `tools` and `document`,
which are large, and not needed for a history. `plain_key`: the keys of turns without calls (`_sqlite_ledger`); `noted`
is in hours. It has no index by age, which would double the cost of each note: expiry scans the table. `unsent`: the
undelivered answers of front doors.

Each index of `call` serves a list of calls that may be rare: of a session, of a tool, open, or not `done`.

`event` is not AUTOINCREMENT, which writes a page of `sqlite_sequence` in each transaction. Still no number is used
twice: see `LAST_EVENT`."""

LAST_EVENT = """
    SELECT max(
        (SELECT coalesce(max(event_id), 0) FROM event),
        (SELECT coalesce(max(value), 0) FROM meta WHERE name IN ('lost_event', 'last_event'))
    )
"""
"""The number of the last event, even if it is deleted: expiry stores the last deleted number (`lost_event`), and the
deletion of a session is itself an event. `last_event`: of a database that was migrated or recovered."""

VERSION = len(MIGRATIONS)
PAGE_SIZE = 2048


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
    if version > VERSION:
        refuse(
            path,
            f"the database has version {version}, from a newer toolgraft; this one knows version {VERSION}. "
            "Use the newer one, or name another file in graft_store",
        )
    if application_id != APPLICATION_ID:
        refuse(path, "the database belongs to another program; name another file in graft_store")


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection to a file that passed `check`, with its tables up to date.

    Raises StoreUnusable, sqlite3.Error, OSError.
    """
    if read_only:
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, autocommit=True)
        with _closed_on_error(db):
            if (version := _number(db, "user_version")) != VERSION:
                check_version(path, version, APPLICATION_ID)
                refuse(path, f"the database has version {version}; start the proxy once to bring it to {VERSION}")
        return db
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    created = [file for file in beside if not file.exists()]
    db = sqlite3.connect(path, autocommit=True)
    with _closed_on_error(db):
        is_new = _is_new(db, path, created)
        if is_new:
            db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
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
        db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        db.executescript(f"BEGIN; {' '.join(MIGRATIONS[:version])} PRAGMA user_version = {version}; COMMIT;")
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
    db.execute(f"PRAGMA journal_size_limit = {2 * LOG_PAGES * PAGE_SIZE}")


def move_log(db: sqlite3.Connection) -> None:
    """Move the log into the database, as far as possible without waiting for readers."""
    before = _number(db, "busy_timeout")
    db.execute("PRAGMA busy_timeout = 0")
    with contextlib.suppress(sqlite3.OperationalError):  # no space: the writes stay in the log
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute(f"PRAGMA busy_timeout = {before}")


def _migrate(db: sqlite3.Connection) -> None:
    """Run all missing migrations in one transaction: one wait for the disk, and no intermediate version is visible."""
    missing = MIGRATIONS[_number(db, "user_version") :]
    if missing:
        db.executescript(f"BEGIN IMMEDIATE; {' '.join(missing)} PRAGMA user_version = {VERSION}; COMMIT;")


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
