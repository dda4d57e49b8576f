"""Another program locks the database: the event loop goes on meanwhile, and the work is done afterwards."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from store.backends import sqlite
from store.backends.sqlite import PATIENT, SqliteStore
from store.base import StoreBusy, StoreUnavailable
from store.models import CachedTools, Policy, Response, Status, Toolset
from tests.store.records import SOON, WORKERS, a_call, a_turn, save

HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], autocommit=True)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
print("free", flush=True)
"""


class Holder:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def let_go(self) -> None:
        assert self.process.stdin
        print(file=self.process.stdin, flush=True)


@contextmanager
def another_program(path: Path) -> Iterator[Holder]:
    """Another process that locks the database for writing."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        try:
            yield Holder(process)
        finally:
            process.kill()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "graft.db")
    await store.open()
    yield store
    await store.close()


RESPONSE = Response(response_id="r1", session="one", document={}, created_at=1.0)
WRITES: dict[str, Callable[[SqliteStore], Coroutine[Any, Any, Any]]] = {
    "put_policy": lambda store: store.put_policy("one", Policy()),
    "put_toolset": lambda store: store.put_toolset("one", Toolset()),
    "delete_session": lambda store: store.delete_session("one"),
    "put_cached_tools": lambda store: store.put_cached_tools(
        CachedTools(session="one", cached_content="c", names={}, created_at=1.0)
    ),
    "save_turn": lambda store: store.save_turn(a_turn("t2"), [a_call("c2", "t2")], [b"key"]),
    "answer": lambda store: store.answer("one", "c-t1", result=1),
    "claim": lambda store: store.claim("one", ["get_weather"], lease=1.0, worker="w"),
    "start": lambda store: store.start("one", "c-t1", loop_id="loop"),
    "settle": lambda store: store.settle("one", "c-t1", Status.EXPIRED, error="no"),
    "settle_lost": lambda store: store.settle_lost(),
    "drop": lambda store: store.drop("p1"),
    "add_response": lambda store: store.add_response(RESPONSE),
    "expire": lambda store: store.expire(),
    "ping": lambda store: store.ping(),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_waits_with_the_event_loop_free(store: SqliteStore, name: str) -> None:
    """It is the event loop that has the other program let go: were it blocked, the program would not."""
    await save(store, "t1", call=WORKERS)
    last = await store.last_event_id()
    with another_program(store.path) as holder:
        writing = asyncio.ensure_future(WRITES[name](store))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not writing.done()
        assert (await store.look_up("one", turn_ids=["t1"])).turns.keys() == {"t1"}, "reading goes on"
        assert await store.last_event_id() == last
        holder.let_go()
        async with asyncio.timeout(SOON):
            await writing


async def test_writes_that_wait_all_happen_once(store: SqliteStore) -> None:
    with another_program(store.path) as holder:
        writing = [asyncio.ensure_future(save(store, f"t{number}")) for number in range(20)]
        await asyncio.sleep(0)
        holder.let_go()
        async with asyncio.timeout(SOON):
            await asyncio.gather(*writing)
    assert {call.call_id for call in (await store.calls()).items} == {f"c-t{number}" for number in range(20)}
    assert len(await store.events(after=None)) == 40


async def test_a_claim_that_waits_is_one_claim(store: SqliteStore) -> None:
    await save(store, "t1", call=WORKERS)
    with another_program(store.path) as holder:
        claiming = [
            asyncio.ensure_future(store.claim("one", ["get_weather"], lease=60.0, worker=f"w{number}"))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        holder.let_go()
        async with asyncio.timeout(SOON):
            claimed = await asyncio.gather(*claiming)
    assert [call is None for call in claimed].count(False) == 1


async def test_a_database_that_stays_locked_is_unavailable(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    with another_program(store.path):
        for write in (store.ping(), store.put_policy("one", Policy()), save(store, "t1")):
            with pytest.raises(StoreBusy, match="locked"):
                await write
        assert await store.session("one") is None
        assert (await store.turns("one")).items == []
    await store.put_policy("one", Policy())


async def test_after_one_wait_in_vain_nobody_waits_until_something_could_be_written(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    statements: list[str] = []
    assert store._db
    store._db.set_trace_callback(statements.append)

    async def tries(name: str) -> int:
        statements.clear()
        with pytest.raises(StoreBusy, match="locked"):
            await WRITES[name](store)
        return statements.count("BEGIN IMMEDIATE")

    for _ in range(2):
        with another_program(store.path):
            assert await tries("ping") > 1
            assert (await store.turns("one")).items == [], "what can be read says nothing of what can be written"
            assert [await tries(name) for name in ("ping", "put_policy", "save_turn")] == [1, 1, 1]
        await store.put_policy("one", Policy())


async def test_concurrent_waiters_give_up_together(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with another_program(store.path):
        first, second = (asyncio.ensure_future(store.put_policy(name, Policy())) for name in ("one", "two"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        monkeypatch.setattr(sqlite, "PATIENCE", 0)
        async with asyncio.timeout(SOON):
            outcomes = await asyncio.gather(first, second, store.ping(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreBusy] * 3


async def test_a_write_that_waits_can_be_given_up(store: SqliteStore) -> None:
    with another_program(store.path) as holder:
        writing = asyncio.ensure_future(store.put_policy("one", Policy()))
        await asyncio.sleep(0)
        writing.cancel()
        holder.let_go()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert await store.session("one") is None


async def test_closing_ends_what_waits(store: SqliteStore) -> None:
    with another_program(store.path):
        writing = asyncio.ensure_future(store.put_policy("one", Policy()))
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(SOON):
            with pytest.raises(StoreUnavailable, match="not open"):
                await writing


def test_all_that_writes_is_patient() -> None:
    assert PATIENT >= WRITES.keys()
