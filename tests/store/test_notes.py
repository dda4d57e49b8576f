"""Notes of turns without calls in SQLite: they are found at once, written together a moment later, and never lost with
the process."""

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from store.backends import _sqlite_noting
from store.backends._note_log import NoteLog, PendingNote
from store.backends._sqlite_noting import MANY, MAX_NOTES
from store.backends.sqlite import SqliteStore
from store.base import StoreUnavailable
from store.models import Policy
from tests.store.conftest import TTL, Clock
from tests.store.records import save
from tests.store.test_atomicity import dump, failing

SOON = 30.0


@pytest.fixture
async def store(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """A store that writes notes only when asked or forced to."""
    monkeypatch.setattr(_sqlite_noting, "MOMENT", 3600.0)
    monkeypatch.setattr(SqliteStore, "_pause", 3600.0)
    store = await opened(tmp_path / "graft.db", clock)
    yield store
    await store.close()


async def opened(path: Path, clock: Callable[[], float]) -> SqliteStore:
    store = SqliteStore(path, ttl=TTL, clock=clock)
    store.uptime = clock
    await store.open()
    return store


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not is_so():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.005)


def written(store: SqliteStore) -> int:
    """The number of rows of notes in the file."""
    with contextlib.closing(sqlite3.connect(f"{store.path.as_uri()}?mode=ro", uri=True)) as db:
        count: int = db.execute("SELECT count(*) FROM plain_key").fetchone()[0]
        return count


def waiting_bytes(store: SqliteStore) -> int:
    """The number of bytes of notes that wait beside the file."""
    return store.path.with_name("graft.db-notes").stat().st_size


async def plain(store: SqliteStore, *keys: bytes, session: str = "one") -> dict[bytes, bytes]:
    return (await store.look_up(session, keys=keys)).plain


def copy(store: SqliteStore, folder: Path) -> None:
    folder.mkdir()
    for suffix in ("", "-wal", "-notes"):
        shutil.copy(f"{store.path}{suffix}", folder)


async def killed(store: SqliteStore, folder: Path) -> SqliteStore:
    """The store of the next process if this one is killed now."""
    copy(store, folder)
    return await opened(folder / store.path.name, store.clock)


# --- found at once --------------------------------------------------------------------------------------------


async def test_a_note_is_found_before_it_is_written_and_after(store: SqliteStore) -> None:
    await save(store, "t1")
    before = store.revision("one")
    await store.save_plain("one", [b"own", b"other"], b"chain")
    assert written(store) == 0
    for _ in range(2):
        assert await plain(store, b"own", b"other", b"none") == {b"own": b"chain", b"other": b""}
        assert await plain(store, b"own", session="two") == {}
        await store._write_notes()
    assert (written(store), waiting_bytes(store)) == (2, 0)
    assert before is not None
    changes = store.changes("one", before)
    assert changes is not None
    assert changes.keys == {b"own", b"other"}
    assert (await store.snapshot("one")).revision == store.revision("one") != before


@pytest.mark.parametrize("chains", [(b"1", b"1"), (b"1", b"2")])
async def test_chains_that_differ_are_none_wherever_they_are(store: SqliteStore, chains: tuple[bytes, bytes]) -> None:
    expected = chains[0] if chains[0] == chains[1] else b""
    for key, is_written in ((b"waits", False), (b"is written", True)):
        await store.save_plain("one", [key], chains[0])
        if is_written:
            await store._write_notes()
        await store.save_plain("one", [key], chains[1])
        assert await plain(store, key) == {key: expected}
    await store._write_notes()
    assert await plain(store, b"waits", b"is written") == {b"waits": expected, b"is written": expected}


# --- written together -----------------------------------------------------------------------------------------


async def test_notes_are_written_together_a_moment_later(tmp_path: Path, clock: Clock) -> None:
    store = await opened(tmp_path / "graft.db", clock)
    assert store._db
    begun: list[str] = []
    store._db.set_trace_callback(lambda statement: begun.append(statement) if "BEGIN" in statement else None)
    for number in range(20):
        await store.save_plain("one", [b"%d" % number])
    await until(lambda: written(store) == 20)
    assert len(begun) == 1
    await until(lambda: waiting_bytes(store) == 0)
    await store.close()


async def test_many_notes_are_written_at_once(store: SqliteStore) -> None:
    for number in range(MANY + 1):
        await store.save_plain("one", [b"%d" % number])
    assert written(store) == MANY


async def test_a_write_takes_the_notes_along(store: SqliteStore) -> None:
    await store.save_plain("one", [b"key"])
    await store.put_policy("two", Policy())
    assert (written(store), waiting_bytes(store)) == (1, 0)


async def test_a_turn_takes_the_notes_along(store: SqliteStore) -> None:
    await store.save_plain("one", [b"key"])
    await save(store, "t1")
    assert (written(store), waiting_bytes(store)) == (1, 0)


async def test_a_result_and_its_acknowledgement_leave_the_notes_for_later(store: SqliteStore) -> None:
    await save(store, "t1")
    await store.save_plain("one", [b"key"])
    waiting = waiting_bytes(store)
    await store.answer("one", "c-t1", result=1)
    await store.sync()
    assert (written(store), waiting_bytes(store)) == (0, waiting)
    assert await plain(store, b"key") == {b"key": b""}


async def test_a_closed_store_holds_them_and_leaves_no_other_file(store: SqliteStore, tmp_path: Path) -> None:
    await store.save_plain("one", [b"key"])
    await store.close()
    assert written(store) == 1
    assert not (tmp_path / "graft.db-notes").exists()


async def test_a_deleted_session_s_notes_go_also_those_that_wait(store: SqliteStore, tmp_path: Path) -> None:
    await store.save_plain("one", [b"key"])
    await store.save_plain("two", [b"key"])
    assert await store.delete_session("one"), "that is something"
    assert await plain(store, b"key") == {}
    assert await plain(store, b"key", session="two") == {b"key": b""}
    reopened = await killed(store, tmp_path / "killed")
    assert await plain(reopened, b"key") == {}
    await reopened.close()


# --- what fails -----------------------------------------------------------------------------------------------


async def test_notes_that_cannot_be_written_are_tried_again_and_told_of_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "graft.db", clock)
    write, tried = store._write_notes_now, list[bool]()

    def fails_at_first() -> None:
        tried.append(len(tried) < 3)
        if tried[-1]:
            raise StoreUnavailable("disk full")
        write()

    monkeypatch.setattr(store, "_write_notes_now", fails_at_first)
    await store.save_plain("one", [b"key"])
    await until(lambda: len(tried) > 1)
    assert await plain(store, b"key") == {b"key": b""}
    await until(lambda: written(store) == 1)
    assert tried == [True, True, True, False]
    assert caplog.text.count("are written later: disk full") == 1
    await store.close()


async def test_notes_that_cannot_be_written_keep_nothing_else_from_being_written(store: SqliteStore) -> None:
    await store.save_plain("one", [b"key"])
    with failing(store, 2):
        await store.put_policy("one", Policy())
    assert (await store.session("one")) is not None
    assert written(store) == 0
    assert await plain(store, b"key") == {b"key": b""}
    await store._write_notes()
    assert written(store) == 1


async def test_no_more_wait_than_there_is_room_for(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise StoreUnavailable("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_notes_now", fails)
        for number in range(MAX_NOTES):
            await store.save_plain("one", [b"%d" % number])
        with pytest.raises(StoreUnavailable, match="disk full"):
            await store.save_plain("one", [b"more"])
    await store.save_plain("one", [b"more"])
    assert written(store) == MAX_NOTES


async def test_a_note_for_which_there_is_no_space_is_not_taken(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.save_plain("one", [b"before"])
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:20]))
        with pytest.raises(StoreUnavailable, match="no space"):
            await store.save_plain("one", [b"key"])
    await store.save_plain("one", [b"after"])
    assert (await plain(store, b"before", b"key", b"after")).keys() == {b"before", b"after"}
    reopened = await killed(store, tmp_path / "killed")
    assert (await plain(reopened, b"before", b"key", b"after")).keys() == {b"before", b"after"}
    await reopened.close()


async def test_notes_fail_whole_and_are_there_whenever_the_process_ends(store: SqliteStore, tmp_path: Path) -> None:
    await store.put_policy("one", Policy())
    before = dump(store.path)
    for number in range(3):
        await store.save_plain("one", [b"headed-same-word", b"headed-%010d-no1" % number], b"%d" % number)
    copies: list[Path] = []

    def copied() -> None:
        copies.append(tmp_path / f"left{len(copies)}")
        copy(store, copies[-1])

    for number in range(1, 100):
        with failing(store, number, copied) as db:
            try:
                await store._write_notes()
            except StoreUnavailable:
                assert db.failed
                assert dump(store.path) == before
            else:
                break
    assert number > 3
    assert dump(store.path) != before
    expected = {b"headed-same-word": b"", **{b"headed-%010d-no1" % number: b"" for number in range(3)}}
    for folder in copies:
        reopened = await opened(folder / "graft.db", store.clock)
        assert await plain(reopened, *expected) == expected
        assert written(reopened), "the start has written them"
        await reopened.close()


# --- a kill ---------------------------------------------------------------------------------------------------

_WRITER = """
import asyncio, sys
from store.backends.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    for number in range(10**6):
        await store.save_plain("one", [b"%d" % number], b"chain")
        print(number, flush=True)
        await asyncio.sleep(0)

asyncio.run(main())
"""


async def test_no_note_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "graft.db"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout
        noted = [int(process.stdout.readline()) for _ in range(10 * MANY + 7)]
        process.send_signal(signal.SIGKILL)
        noted += [int(line) for line in process.stdout.read().splitlines() if line]
    assert process.returncode == -signal.SIGKILL
    store = SqliteStore(path)
    await store.open()
    assert await plain(store, *(b"%d" % number for number in noted)) == {b"%d" % number: b"chain" for number in noted}
    await store.close()


def noted_keys(log: NoteLog) -> list[list[bytes]]:
    return [list(note.keys) for note in log.notes]


@pytest.mark.parametrize("damage", ["cut", "changed", "zeros", "another store's"])
def test_half_a_note_or_one_of_another_store_is_not_taken_in(tmp_path: Path, damage: str) -> None:
    path, secret = tmp_path / "notes", b"s" * 32
    log = NoteLog(path, secret)
    log.add(PendingNote("one", 1, [b"first"], b""))
    whole = path.read_bytes()
    log.add(PendingNote("one", 1, [b"second"], b""))
    log.close()
    data = path.read_bytes()
    expected: list[list[bytes]] = [[b"first"]]
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "changed":
        path.write_bytes(data[:-1] + b"?")
    elif damage == "zeros":
        path.write_bytes(whole + bytes(len(data)))
    else:
        secret, expected = b"t" * 32, []
    log = NoteLog(path, secret)
    assert noted_keys(log) == expected
    log.add(PendingNote("one", 1, [b"later"], b""))
    log.close()
    log = NoteLog(path, secret)
    assert noted_keys(log) == [*expected, [b"later"]]
    log.clear()
    log.close()
    assert not path.exists()


# --- expiry ---------------------------------------------------------------------------------------------------


async def test_a_note_that_waits_expires_when_it_is_old(store: SqliteStore, clock: Clock) -> None:
    await store.save_plain("one", [b"key"])
    clock.now += 2 * TTL + 7200
    await store.save_plain("one", [b"young"])
    assert await store.expire() == 1
    assert await plain(store, b"key", b"young") == {b"young": b""}


async def test_old_notes_are_found_a_few_rows_at_a_time(
    store: SqliteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite_noting, "_LOOKED_AT", 10)

    async def noted(*numbers: int) -> None:
        for number in numbers:
            await store.save_plain("one", [b"%03d" % number])

    await noted(*range(0, 35, 2))
    clock.now += 2 * TTL + 7200
    await noted(*range(1, 35, 2))
    gone = [await store.expire() for _ in range(4)]
    assert gone == [5, 5, 5, 3]
    assert (await plain(store, *(b"%03d" % number for number in range(35)))).keys() == {
        b"%03d" % number for number in range(1, 35, 2)
    }
    clock.now += 2 * TTL + 7200
    assert [await store.expire() for _ in range(3)] == [10, 7, 0]


def rows(store: SqliteStore, statement: str) -> list[Any]:
    assert store._db
    return store._db.execute(statement).fetchall()


async def test_a_note_costs_no_index(store: SqliteStore) -> None:
    assert rows(store, "SELECT name FROM sqlite_master WHERE tbl_name = 'plain_key' AND sql LIKE 'CREATE INDEX%'") == []
