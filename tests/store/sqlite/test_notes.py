"""Notes of turns without calls in SQLite: a lost one may cause a wrong hit."""

import contextlib
import hashlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from store.backends import _sqlite_ledger
from store.backends.sqlite import SqliteStore
from store.base import StoreUnusable
from tests.store.conftest import TTL, Clock, clock
from tests.store.records import save

__all__ = ["clock"]


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = await opened(tmp_path / "graft.db", clock)
    yield store
    await store.close()


async def opened(path: Path, clock: Callable[[], float]) -> SqliteStore:
    store = SqliteStore(path, ttl=TTL, clock=clock)
    store.uptime = clock
    await store.open()
    return store


async def plain(store: SqliteStore, *keys: bytes, session: str = "one") -> dict[bytes, bytes]:
    return (await store.look_up(session, keys=keys)).plain


async def test_a_note_is_a_change_of_its_keys_in_its_session(store: SqliteStore) -> None:
    await save(store, "t1")
    before = store.revision("one")
    await store.save_plain("one", [b"own", b"other"], b"chain")
    assert await plain(store, b"own", b"other", b"none") == {b"own": b"chain", b"other": b""}
    assert await plain(store, b"own", session="two") == {}
    assert before is not None
    changes = store.changes("one", before)
    assert changes is not None
    assert changes.keys == {b"own", b"other"}
    assert (await store.snapshot("one")).revision == store.revision("one") != before


@pytest.mark.parametrize("chains", [(b"1", b"1"), (b"1", b"2")])
async def test_chains_that_differ_are_none(store: SqliteStore, chains: tuple[bytes, bytes]) -> None:
    for chain in chains:
        await store.save_plain("one", [b"key"], chain)
    assert await plain(store, b"key") == {b"key": chains[0] if chains[0] == chains[1] else b""}


async def test_a_deleted_session_s_notes_go(store: SqliteStore) -> None:
    await store.save_plain("one", [b"key"])
    await store.save_plain("two", [b"key"])
    assert await store.delete_session("one"), "that is something"
    assert await plain(store, b"key") == {}
    assert await plain(store, b"key", session="two") == {b"key": b""}


_WRITER = """
import asyncio, sys
from store.backends.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    for number in range(10**6):
        await store.save_plain("one", [b"%d" % number], b"chain")
        print(number, flush=True)

asyncio.run(main())
"""


async def test_no_note_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "graft.db"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout
        noted = [int(process.stdout.readline()) for _ in range(500)]
        process.send_signal(signal.SIGKILL)
        noted += [int(line) for line in process.stdout.read().splitlines() if line]
    assert process.returncode == -signal.SIGKILL
    store = SqliteStore(path)
    await store.open()
    assert await plain(store, *(b"%d" % number for number in noted)) == {b"%d" % number: b"chain" for number in noted}
    await store.close()


# --- the file that earlier versions kept beside the database ------------------------------------------------------


def old_note(secret: bytes, key: bytes) -> bytes:
    encoded = msgspec.msgpack.encode(("one", 1, [key], b"chain"))
    return len(encoded).to_bytes(4) + hashlib.blake2b(encoded, key=secret, digest_size=8).digest() + encoded


@pytest.mark.parametrize("damage", ["none", "cut", "changed", "zeros", "another store's"])
async def test_notes_that_an_earlier_version_left_are_taken_over_once(
    store: SqliteStore, tmp_path: Path, damage: str
) -> None:
    secret = b"t" * 32 if damage == "another store's" else store.secret
    first, second = old_note(secret, b"first"), old_note(secret, b"second")
    if damage == "cut":
        second = second[:-1]
    elif damage == "changed":
        second = second[:-1] + b"?"
    elif damage == "zeros":
        second = bytes(100)
    await store.close()
    left = tmp_path / "graft.db-notes"
    left.write_bytes(first + second)
    await store.open()
    expected = {"none": {b"first", b"second"}, "another store's": set()}.get(damage, {b"first"})
    assert await plain(store, b"first", b"second") == dict.fromkeys(expected, b"chain")
    assert not left.exists()


async def test_notes_of_an_earlier_version_stay_until_they_are_written(
    store: SqliteStore, tmp_path: Path, clock: Clock
) -> None:
    await store.close()
    left = tmp_path / "graft.db-notes"
    left.write_bytes(note := old_note(store.secret, b"first"))
    with contextlib.closing(sqlite3.connect(store.path, autocommit=True)) as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON plain_key BEGIN SELECT raise(ABORT, 'disk full'); END")
        with pytest.raises(StoreUnusable, match="disk full"):
            await opened(store.path, clock)
        assert left.read_bytes() == note
        db.execute("DROP TRIGGER full")
    await store.open()
    assert await plain(store, b"first") == {b"first": b"chain"}


# --- expiry -------------------------------------------------------------------------------------------------------


async def test_old_notes_are_found_a_few_rows_at_a_time(
    store: SqliteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite_ledger, "_LOOKED_AT", 10)

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


async def test_a_note_costs_no_index(store: SqliteStore) -> None:
    assert store._db
    statement = "SELECT name FROM sqlite_master WHERE tbl_name = 'plain_key' AND sql LIKE 'CREATE INDEX%'"
    assert store._db.execute(statement).fetchall() == []
