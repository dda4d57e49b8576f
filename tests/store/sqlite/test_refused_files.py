"""Files that the SQLite store does not open, or no longer writes to."""

# ruff: noqa: ASYNC221, ASYNC240

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from store.backends import _clocks, _sqlite_file
from store.backends.sqlite import SqliteStore
from store.base import CursorLost
from store.models import Policy
from tests.permissions import modes_apply
from tests.store.sqlite.conftest import contents, fill, refused, whole


def newer(path: Path) -> None:
    with sqlite3.connect(path, autocommit=True) as db:
        db.execute("CREATE TABLE future (a)")
        db.execute("PRAGMA user_version = 99")
    db.close()


def foreign(path: Path) -> None:
    with sqlite3.connect(path, autocommit=True) as db:
        db.execute("CREATE TABLE bookmark (url)")
    db.close()


def truncated(path: Path) -> None:
    whole(path)
    path.write_bytes(path.read_bytes()[:-5000])


def scrambled(path: Path) -> None:
    whole(path)
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xaa" * (len(data) - 100))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (newer, ["version 99", "newer toolgraft", f"version {_sqlite_file.VERSION}"]),
        (foreign, ["another program"]),
        (truncated, ["damaged"]),
        (scrambled, ["cannot be used", "malformed"]),
        (lambda path: path.write_bytes(b"not a database at all" * 100), ["not a SQLite database"]),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), ["not a SQLite database"]),
        (lambda path: path.mkdir(), ["not a file"]),
    ],
    ids=["newer", "foreign", "truncated", "scrambled", "garbage", "stump", "folder"],
)
async def test_a_file_that_cannot_be_used_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], object], words: list[str]
) -> None:
    path = tmp_path / "graft.db"
    make(path)
    before = None if path.is_dir() else contents(tmp_path)
    times = path.stat().st_mtime_ns
    await refused(path, *words)
    if before is not None:
        assert contents(tmp_path) == before
    await refused(path, *words, read_only=True)
    assert path.stat().st_mtime_ns == times


async def test_a_newer_version_that_is_only_in_the_log_is_refused_and_not_touched(tmp_path: Path, path: Path) -> None:
    whole(path)
    crash = f"""
import os, sqlite3
db = sqlite3.connect({str(path)!r}, autocommit=True)
db.execute("PRAGMA user_version = 99")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", crash], check=False, timeout=30)
    (tmp_path / "graft.db-shm").unlink()
    before = contents(tmp_path)
    assert before.keys() == {"graft.db", "graft.db-wal"}
    await refused(path, "version 99")
    assert contents(tmp_path) == before


async def test_a_database_of_a_version_that_this_one_knows_is_brought_up_to_date(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(path)
    later = (*_sqlite_file.MIGRATIONS, "CREATE TABLE more (a); INSERT INTO more VALUES (1);")
    monkeypatch.setattr(_sqlite_file, "MIGRATIONS", later)
    monkeypatch.setattr(_sqlite_file, "VERSION", len(later))
    await refused(path, "start the proxy once", read_only=True)
    store = SqliteStore(path)
    await store.open()
    assert await store.session("one") is not None
    await store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT a FROM more").fetchall() == [(1,)]
        assert db.execute("PRAGMA user_version").fetchone() == (len(later),)
    db.close()


async def test_the_secret_and_the_epoch_outlive_a_restart_and_differ_between_stores(path: Path, tmp_path: Path) -> None:
    known = []
    for file in (path, path, tmp_path / "another.db"):
        store = SqliteStore(file)
        await store.open()
        known.append((store.secret, store.epoch))
        await store.close()
    assert known[0] == known[1]
    assert known[0][0] != known[2][0]
    assert known[0][1] != known[2][1]
    assert len(known[0][0]) == 32


async def test_a_store_that_was_left_open_keeps_its_epoch_unless_the_machine_has_started_anew(
    store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses nothing. A machine may lose events, whose ids are then given again."""
    await store.put_policy("one", Policy())
    observed = await store.last_event_id()

    async def opened(name: str) -> SqliteStore:
        left = tmp_path / name
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
        reopened = SqliteStore(left)
        await reopened.open()
        return reopened

    killed = await opened("killed.db")
    assert killed.epoch == store.epoch
    assert await killed.events(after=observed) == []
    monkeypatch.setattr(_clocks, "boot", lambda: "another")
    fresh = await opened("fresh.db")
    assert fresh.epoch != store.epoch
    with pytest.raises(CursorLost):
        await fresh.events(after=observed)
    assert len(await fresh.events(after=None)) == 1
    for reopened in (killed, fresh):
        await reopened.close()
        before = reopened.epoch
        monkeypatch.setattr(_clocks, "boot", lambda: "yet another")
        await reopened.open()
        assert reopened.epoch == before, "it was closed, and has lost nothing"
        await reopened.close()


async def test_a_lease_outlives_a_restart(store: SqliteStore, path: Path) -> None:
    await fill(store)
    claimed = await store.claim("one", ["f"], lease=60.0, worker="w")
    assert claimed is not None
    await store.close()
    reopened = SqliteStore(path)
    await reopened.open()
    assert await reopened.call("one", claimed.call_id) == claimed
    assert 0 < (await reopened.next_lease("one", ["f"]) or 0) <= 60.0
    assert (await reopened.renew("one", claimed.call_id, "w", 60.0)).worker == "w"
    await reopened.close()


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(path)
    later = (*_sqlite_file.MIGRATIONS, "CREATE TABLE more (a); INSERT INTO nowhere VALUES (1);")
    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_file, "MIGRATIONS", later)
        patch.setattr(_sqlite_file, "VERSION", len(later))
        await refused(path, "nowhere")
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchall() == []
    db.close()
    store = SqliteStore(path)
    await store.open()
    await store.close()


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    await refused(tmp_path / "file" / "graft.db", "its folder is not writable")
    assert (tmp_path / "file").read_text() == "kept"


async def test_a_folder_or_a_file_without_write_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    path = tmp_path / "files" / "graft.db"
    path.parent.mkdir()
    whole(path)
    path.chmod(0o400)
    before = contents(path.parent)
    with modes_apply():
        await refused(folder / "graft.db", "its folder is not writable")
        await refused(path, "not readable and writable")
    assert contents(path.parent) == before


async def test_a_refused_file_leaves_no_lock_behind(path: Path) -> None:
    newer(path)
    await refused(path, "99")
    path.unlink()
    store = SqliteStore(path)
    await store.open()
    await store.close()
