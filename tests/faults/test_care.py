"""A copy of the store while it is used, what is wrong with it, and what can be saved of a damaged one."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store import care
from store.backends.sqlite import SqliteStore
from store.base import CursorLost, StoreUnusable
from store.models import Response, Toolset
from tests.store.records import save


async def fill(store: SqliteStore, turns: int = 60) -> None:
    await store.put_toolset("one", Toolset(declarations=[{"name": "get_weather"}]))
    for number in range(turns):
        await save(store, f"t{number}", keys=[b"%d" % number])
    for number in range(3):
        previous, head = (f"r{number - 1}",) * 2 if number else (None, None)
        response = Response(
            response_id=f"r{number}",
            session="one",
            conversation="chat",
            previous=previous,
            contents=[{"role": "user", "parts": [{"text": "x" * 600}]}],
            document={},
            created_at=1.0,
        )
        await store.add_response(response, head=head)


async def everything(store: SqliteStore) -> dict[str, Any]:
    return {
        "sessions": (await store.sessions()).items,
        "turns": (await store.turns("one", limit=1000)).items,
        "calls": (await store.calls(limit=1000)).items,
        "history": await store.history("one", "r2"),
        "conversation": await store.conversation("one", "chat"),
        "found": (await store.look_up("one", keys=[b"1"])).by_key,
        "secret": store.secret,
    }


def spoil(path: Path, words: bytes, count: int = 1) -> int:
    """Overwrite the beginning of pages that hold these words; returns of how many."""
    content, done = bytearray(path.read_bytes()), 0
    for at in range(4096, len(content), 2048):
        if words in content[at : at + 2048] and done < count:
            content[at : at + 64] = b"\xa5" * 64
            done += 1
    path.write_bytes(content)
    return done


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def test_a_backup_of_a_store_in_use_is_whole_and_another_history(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store)
    (tmp_path / "copies").mkdir()
    copy = tmp_path / "copies" / "copy.db"
    care.backup(store.path, copy)
    cursor = await store.last_event_id()
    await save(store, "later")
    assert files(copy.parent) == {"copy.db"}
    assert copy.stat().st_mode & 0o777 == 0o600
    assert care.check(copy) == []
    reopened = SqliteStore(copy)
    await reopened.open()
    kept = await everything(reopened)
    with pytest.raises(CursorLost):
        await reopened.events(after=cursor)
    await reopened.close()
    await store.delete_session("other")
    now = await everything(store)
    assert kept == {**now, "turns": now["turns"][:-1], "calls": now["calls"][:-1]}


async def test_a_backup_has_its_name_once_the_disk_has_it(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill or a power failure leaves no half of one under its name."""
    await fill(store)
    copy = tmp_path / "copies" / "copy.db"
    copy.parent.mkdir()
    asked: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(file: int) -> None:
        fsync(file)
        asked.append("folder" if os.path.samestat(os.fstat(file), copy.parent.stat()) else "file")

    def note_rename(*paths: Any) -> None:
        assert care.check(paths[0]) == []
        rename(*paths)
        asked.append("name")

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    care.backup(store.path, copy)
    assert asked == ["file", "name", "folder"]
    assert files(copy.parent) == {"copy.db"}


async def test_a_backup_takes_no_other_file_s_place(store: SqliteStore, tmp_path: Path) -> None:
    for target in (store.path, tmp_path / "mine"):
        if target != store.path:
            target.write_text("mine")
        with pytest.raises(care.CareError, match="exists already"):
            care.backup(store.path, target)
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(care.CareError, match="cannot be written"):
        care.backup(store.path, tmp_path / "no" / "folder")
    with pytest.raises(care.CareError, match="has no file"):
        care.database_of("memory://")
    with pytest.raises(StoreUnusable, match="no such file"):
        care.backup(tmp_path / "none.db", tmp_path / "copy.db")


async def test_a_damaged_store_is_not_backed_up_as_if_it_were_whole(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store)
    await store.close()
    assert spoil(store.path, b"Oslo")
    with pytest.raises(care.CareError, match="toolgraft recover"):
        care.backup(store.path, tmp_path / "copy.db")
    assert files(tmp_path) - {"graft.db-shm", "graft.db-wal"} == {"graft.db", "graft.db.lock"}


async def test_check_names_what_is_wrong(store: SqliteStore) -> None:
    await fill(store)
    assert care.check(store.path) == [], "beside the proxy"
    await store.close()
    with closing(sqlite3.connect(store.path, autocommit=True)) as db:
        db.execute("UPDATE call SET record = '{' WHERE call_id = 'c-t7'")
    assert care.check(store.path) == ["call c-t7: its record cannot be read"]
    assert spoil(store.path, b"Oslo", 3)
    assert len(care.check(store.path)) > 1


@pytest.mark.parametrize("words", [b"Oslo", b"get_weather", b"x" * 500, b"turn.created"])
@pytest.mark.parametrize("count", [1, 4])
async def test_readable_records_are_recovered(
    store: SqliteStore, tmp_path: Path, words: bytes, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care, "_MAX_NUMBER", 4096)  # tried if the last number is unknown
    await fill(store)
    before = await everything(store)
    await store.close()
    assert spoil(store.path, words, count)
    with pytest.raises(StoreUnusable, match="toolgraft recover"):
        await store.open()
    done = care.recover(store.path)
    assert done.damaged.name == "graft.db.damaged"
    assert care.check(done.damaged)
    assert care.check(store.path) == []
    assert files(tmp_path) - {"graft.db.damaged-shm", "graft.db.damaged-wal"} == {
        "graft.db",
        "graft.db.damaged",
        "graft.db.lock",
    }
    assert store.path.stat().st_mode & 0o777 == 0o600
    await store.open()
    assert store.secret == before["secret"]
    turns, calls = (await store.turns("one", limit=1000)).items, (await store.calls(limit=1000)).items
    assert all(turn in before["turns"] for turn in turns)
    assert all(call in before["calls"] for call in calls)
    assert {call.turn_id for call in calls} <= {turn.turn_id for turn in turns}
    if words != b"get_weather":
        assert (await store.session("one")) == before["sessions"][0]
    assert len(turns) >= 60 - 12 * count
    await save(store, "later")
    assert len((await store.turns("one", limit=1000)).items) == len(turns) + 1


async def test_numbers_that_were_given_are_not_given_again(store: SqliteStore) -> None:
    await fill(store)
    version = (await store.snapshot("one")).version
    number = int((await store.last_event_id()).rpartition("-")[2])
    await store.close()
    assert spoil(store.path, b"turn.created", 1000)
    care.recover(store.path)
    await store.open()
    assert (await store.put_toolset("one", None)).version > max(version, number)


async def test_records_in_the_log_are_recovered_and_the_log_is_moved_aside(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store)
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "graft.db"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{store.path}{suffix}", f"{copy}{suffix}")
    done = care.recover(copy)
    assert done.saved["turn"] == 60
    assert "graft.db-wal" not in files(copy.parent)
    reopened = SqliteStore(copy)
    await reopened.open()
    assert await everything(reopened) == await everything(store)
    await reopened.close()
    assert care.recover(copy).damaged.name == "graft.db.damaged1"


async def test_a_store_in_use_is_not_recovered(store: SqliteStore) -> None:
    with pytest.raises(StoreUnusable, match="another toolgraft uses it"):
        care.recover(store.path)


async def test_a_file_that_is_no_longer_a_database_is_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store, 1)
    await store.close()
    store.path.write_bytes(b"\0" * 4096)
    with pytest.raises(StoreUnusable, match="not a SQLite database"):
        care.recover(store.path)
    assert files(tmp_path) >= {"graft.db"}
