"""SQLite's write-ahead log: only the writer's own commits move it into the database, readers that stay hold up nobody,
and it is small again after them and after a restart."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store import care
from store.backends import _sqlite_file
from store.backends.sqlite import SqliteStore
from store.models import Policy
from tests.store.records import SOON, save

PAGES = 128
LIMIT = PAGES * 2048


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graft.db"


@pytest.fixture
async def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(_sqlite_file, "LOG_PAGES", PAGES)
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


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def log_size(path: Path) -> int:
    return size_of(log_of(path))


def size_of(file: Path) -> int:
    return file.stat().st_size


def bytes_of(path: Path) -> tuple[bytes, bytes]:
    """Of the database, and of its log. Read by another process: if this one closes a file, it loses its locks on it."""
    database, log = (subprocess.check_output(["cat", file], timeout=SOON) for file in (path, log_of(path)))
    return database, log


async def fill(store: SqliteStore, bytes_of_log: int, name: str = "t") -> None:
    end, number = log_size(store.path) + bytes_of_log, 0
    while log_size(store.path) < end:
        number += 1
        await save(store, f"{name}{number}", model="x" * 2000)


async def test_a_commit_of_the_writer_moves_the_log_and_the_next_ones_use_it_again(
    store: SqliteStore, path: Path
) -> None:
    before = size_of(path)
    for number in range(100):
        await save(store, f"t{number}", model="x" * 2000)
        assert log_size(path) < 2 * LIMIT
    assert size_of(path) > before + LIMIT


async def test_one_large_record_is_reason_enough_to_move_the_log(store: SqliteStore, path: Path) -> None:
    before = size_of(path)
    await save(store, "t1", model="x" * 2 * LIMIT)
    assert size_of(path) > before + LIMIT


async def _another_store(path: Path, folder: Path) -> None:
    reader = SqliteStore(path, read_only=True)
    await reader.open()
    assert (await reader.turns("one")).items
    await reader.close()


async def _backup(path: Path, folder: Path) -> None:
    care.backup(path, folder / "copy.db")


async def _check(path: Path, folder: Path) -> None:
    assert care.check(path) == []


async def _another_process(path: Path, folder: Path) -> None:
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        " assert db.execute('SELECT count(*) FROM turn').fetchone()[0]; db.close()"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=SOON)  # noqa: ASYNC221


@pytest.mark.parametrize("use", [_another_store, _backup, _check, _another_process])
async def test_no_other_connection_moves_the_log(
    store: SqliteStore, path: Path, tmp_path: Path, use: Callable[[Path, Path], Awaitable[None]]
) -> None:
    """SQLite before 3.51.3 could lose a commit that restarts the log while another connection begins to move it."""
    await fill(store, LIMIT // 4, "first-")
    before = bytes_of(path)
    await use(path, tmp_path)
    assert bytes_of(path) == before
    await fill(store, LIMIT // 4, "later-")
    assert bytes_of(path)[0] == before[0]


async def test_a_reader_that_stays_holds_up_no_write(store: SqliteStore, path: Path) -> None:
    await save(store, "t0")
    with reader_of(path):
        async with asyncio.timeout(SOON):
            await fill(store, 4 * LIMIT)


async def test_a_log_that_grew_for_a_reader_is_small_again_after_it(store: SqliteStore, path: Path) -> None:
    await save(store, "t0")
    with reader_of(path):
        await fill(store, 4 * LIMIT)
    for number in range(3):
        await save(store, f"later-{number}")
    assert log_size(path) <= 2 * LIMIT


def crashed(path: Path, folder: Path) -> Path:
    """The database as a kill leaves it."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", folder / (path.name + suffix))
    return folder / path.name


async def test_the_start_moves_what_a_kill_left_in_the_log(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    await fill(store, LIMIT // 2)
    written = (await store.turns("one")).items
    copy = crashed(path, tmp_path / "copy")
    reopened = SqliteStore(copy)
    await reopened.open()
    assert log_size(copy) < LIMIT / 4
    assert (await reopened.turns("one")).items == written
    await reopened.close()


async def test_the_start_does_not_wait_for_a_reader(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    await fill(store, LIMIT // 2)
    copy = crashed(path, tmp_path / "copy")
    with reader_of(copy):
        reopened = SqliteStore(copy)
        async with asyncio.timeout(SOON):
            await reopened.open()
            await reopened.put_policy("one", Policy())
        await reopened.close()
