"""SQLite's write-ahead log: readers that stay hold up nobody, and it is small again after them and after a restart."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.backends import _checkpoints
from store.backends.sqlite import SqliteStore
from tests.store.records import SOON, save

LIMIT = 1 << 18


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graft.db"


@pytest.fixture
async def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(_checkpoints, "STEP", 1 << 16)
    monkeypatch.setattr(_checkpoints, "QUIET", 0.001)
    monkeypatch.setattr(_checkpoints, "LIMIT", LIMIT)
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


@contextmanager
def reader_of(path: Path) -> Iterator[None]:
    db = sqlite3.connect(path, autocommit=True)
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM session").fetchone()
    try:
        yield
    finally:
        db.close()


def log_size(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


async def fill(store: SqliteStore, bytes_of_log: int) -> None:
    end, number = log_size(store.path) + bytes_of_log, 0
    while log_size(store.path) < end:
        number += 1
        await save(store, f"t{end}-{number}", model="x" * 2000)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.005)


async def test_a_reader_that_stays_holds_up_no_write(store: SqliteStore, path: Path) -> None:
    """A checkpoint that waits for readers keeps the writer out meanwhile."""
    await save(store, "t0")
    with reader_of(path):
        async with asyncio.timeout(SOON):
            await fill(store, 4 * LIMIT)


async def test_a_log_that_grew_for_a_reader_is_small_again_after_it(store: SqliteStore, path: Path) -> None:
    await save(store, "t0")
    with reader_of(path):
        await fill(store, 4 * LIMIT)
    number = 0
    async with asyncio.timeout(SOON):
        while log_size(path) > 2 * LIMIT:
            number += 1
            await save(store, f"later-{number}", model="x" * 2000)
            await asyncio.sleep(0.002)


def crashed(path: Path, folder: Path) -> Path:
    """The database as a kill leaves it."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", folder / (path.name + suffix))
    return folder / path.name


async def test_the_start_moves_what_a_kill_left_in_the_log(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await fill(store, LIMIT)
    written = (await store.turns("one")).items
    copy = crashed(path, tmp_path / "copy")
    await store.close()
    reopened = SqliteStore(copy)
    await reopened.open()
    assert log_size(copy) < LIMIT / 4
    assert (await reopened.turns("one")).items == written
    await reopened.close()


async def test_the_start_does_not_wait_for_a_reader_and_counts_what_it_leaves(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    await fill(store, LIMIT)
    copy = crashed(path, tmp_path / "copy")
    with reader_of(copy):
        reopened = SqliteStore(copy)
        async with asyncio.timeout(SOON / 2):
            await reopened.open()
        assert reopened._checkpoints
        assert reopened._checkpoints._written >= LIMIT
        await reopened.close()


class Log:
    """In the place of SQLite's checkpoints: what was asked for, whether it could be done, and the size of the log."""

    def __init__(self, *outcomes: tuple[bool, int]) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def move(self, db: sqlite3.Connection, mode: str) -> tuple[bool, int]:
        self.asked.append(mode)
        self.meanwhile()
        return self.outcomes.pop(0)


@pytest.fixture
def checkpoints(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_checkpoints.Checkpoints]:
    monkeypatch.setattr(_checkpoints, "QUIET", 0.0)
    made = _checkpoints.Checkpoints(path, 0)
    yield made
    made.close()


async def handled(checkpoints: _checkpoints.Checkpoints) -> None:
    """The thread has looked at what it was told."""
    await until(lambda: not checkpoints._due.is_set())
    checkpoints._due.set()
    await until(lambda: not checkpoints._due.is_set())


async def test_no_checkpoint_begins_while_a_commit_could_use_the_log_again(
    checkpoints: _checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's WAL-reset bug, before 3.51.3, needs both at the same time."""
    log = Log((True, 9), (True, 9))
    monkeypatch.setattr(_checkpoints, "move", log.move)
    checkpoints.begins()
    log.meanwhile = lambda: checkpoints.wrote(_checkpoints.STEP)  # committed before, and told of now
    checkpoints.wrote(_checkpoints.LIMIT)
    await until(lambda: checkpoints._moved_at == 1)
    await handled(checkpoints)
    assert log.asked == ["PASSIVE"], "what may be moved as a whole is not moved again at once"
    log.meanwhile = lambda: None
    checkpoints.begins()
    await handled(checkpoints)
    assert log.asked == ["PASSIVE"], "a transaction that has not written yet may use the log again"
    checkpoints.wrote(_checkpoints.STEP)
    await until(lambda: checkpoints._moved_at == 2)
    assert log.asked == ["PASSIVE", "PASSIVE"]


async def test_a_log_that_grows_without_a_pause_restarts_between_two_commits_or_the_writer_waits(
    checkpoints: _checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, header = Log((True, 9), (True, 10), (True, 11), (False, -1), (True, 12), (True, 13)), [b"old"]
    monkeypatch.setattr(_checkpoints, "move", log.move)
    monkeypatch.setattr(_checkpoints, "beginning", lambda log: header[0])
    monkeypatch.setattr(_checkpoints, "TRIES", 2)
    monkeypatch.setattr(_checkpoints, "QUIET", SOON)
    checkpoints.begins()
    checkpoints.wrote(_checkpoints.LIMIT)
    expected: list[str] = []

    async def next_is(mode: str) -> None:
        expected.append(mode)
        await until(lambda: checkpoints._moved_at == len(expected))
        assert log.asked == expected

    await next_is("PASSIVE")
    for mode in ("PASSIVE", "PASSIVE", "RESTART"):
        checkpoints.begins()
        checkpoints.wrote(1)
        await next_is(mode)
    checkpoints.begins()
    checkpoints.wrote(_checkpoints.LIMIT - _checkpoints.STEP)
    await next_is("PASSIVE")  # it is tried again soon
    checkpoints.begins()
    checkpoints.wrote(1)
    await next_is("PASSIVE")
    header[0] = b"new"
    checkpoints.begins()
    checkpoints.wrote(1)
    await handled(checkpoints)
    assert log.asked == expected, "the log is small again, and a checkpoint would have it restart once more"


def test_the_header_of_a_log_tells_a_restart(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    assert _checkpoints.beginning(log) == b""
    db = sqlite3.connect(path, autocommit=True)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("CREATE TABLE t (a)")
    first = _checkpoints.beginning(log)
    db.execute("INSERT INTO t VALUES (1)")
    assert _checkpoints.beginning(log) == first
    _checkpoints.move(db, "PASSIVE")
    assert _checkpoints.beginning(log) == first
    db.execute("INSERT INTO t VALUES (2)")
    assert _checkpoints.beginning(log) != first
    db.close()


async def test_a_transaction_that_writes_nothing_moves_no_log(store: SqliteStore) -> None:
    await save(store, "t1")
    checkpoints = store._checkpoints
    assert checkpoints
    before = checkpoints._last_commit
    await store.settle_lost()
    assert checkpoints._transactions > before == checkpoints._last_commit
    await save(store, "t2")
    assert checkpoints._last_commit == checkpoints._transactions
