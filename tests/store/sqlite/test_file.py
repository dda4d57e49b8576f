"""The file of a SQLite store, and what happens to it while the store is open."""

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteStore
from store.base import CursorLost, StoreUnavailable
from store.models import CachedTools, Policy, Response, Toolset, Turn
from tests.store.records import save
from tests.store.sqlite.conftest import contents, fill


def a_response(number: int, *, pad: str = "") -> Response:
    """A response of a conversation in which each follows the one before it."""
    return Response(
        response_id=f"r{number}",
        session="one",
        conversation="chat",
        previous=f"r{number - 1}" if number else None,
        contents=[{"role": "user", "parts": [{"text": pad}]}],
        tools={"f": number},
        calls={f"call_{number}": {"functionCall": {"name": "f"}, "thoughtSignature": "s"}},
        document={"id": f"r{number}"},
        created_at=1.0,
    )


# --- the file -------------------------------------------------------------------------------------------------


async def test_missing_folders_and_the_database_are_made_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "graft"
    store = SqliteStore(folder / "graft.db")
    await store.open()
    await store.put_policy("one", Policy())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, folder.parent, *folder.iterdir()]}
    assert modes.pop("state") == modes.pop("graft") == 0o700
    assert modes.keys() == {"graft.db", "graft.db-wal", "graft.db-shm", "graft.db.lock"}
    assert set(modes.values()) == {0o600}
    await store.close()


async def test_a_clean_close_leaves_one_whole_file(store: SqliteStore, tmp_path: Path, path: Path) -> None:
    await fill(store)
    await store.close()
    assert contents(tmp_path).keys() == {"graft.db"}
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT turn_id FROM turn").fetchall() == [("t1",)]
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


async def test_a_restart_keeps_everything(store: SqliteStore, path: Path) -> None:
    toolset = Toolset(declarations=[{"name": "f"}])
    await store.put_policy("one", Policy(delivery="loop"))
    session = await store.put_toolset("one", toolset)
    cached = CachedTools(session="one", cached_content="cachedContents/1", names={"f": "g"}, created_at=1)
    await store.put_cached_tools(cached)
    await fill(store)
    answered, _ = await store.answer("one", "c-t1", result={"n": 2**80})
    found = await store.look_up("one", keys=[b"t1"])
    events = await store.events(after=None)
    await store.close()

    reopened = SqliteStore(path)
    await reopened.open()
    assert await reopened.session("one") == session
    assert await reopened.cached_tools("one", "cachedContents/1") == cached
    assert await reopened.look_up("one", keys=[b"t1"]) == found
    assert await reopened.call("one", "c-t1") == answered
    assert await reopened.events(after=None) == events
    assert await reopened.last_event_id() == events[-1].event_id
    assert reopened.revision("one") != 0, "the ledger is not empty"
    await reopened.put_policy("two", Policy())
    assert [event.session for event in await reopened.events(after=events[-1].event_id)] == ["two"]
    await reopened.close()


async def test_a_restart_keeps_which_events_have_expired(tmp_path: Path) -> None:
    now = 1_000_000.0
    store = SqliteStore(tmp_path / "graft.db", ttl=1000.0, clock=lambda: now)
    store.uptime = store.clock
    await store.open()
    await save(store, "t1")
    first = (await store.events(after=None))[0].event_id
    now += 1001
    while await store.expire():
        pass
    await store.close()
    for read_only in (False, True):
        store = SqliteStore(tmp_path / "graft.db", ttl=1000.0, clock=lambda: now, read_only=read_only)
        store.uptime = store.clock
        await store.open()
        with pytest.raises(CursorLost):
            await store.events(after=first)
        await store.close()


async def test_a_restart_keeps_responses_and_conversations(store: SqliteStore, path: Path) -> None:
    for number in range(4):
        await store.add_response(a_response(number), head=a_response(number).previous)
    await store.delete_response("one", "r1")
    history, given = await store.history("one", "r3"), await store.given_calls("one", ["call_0", "call_3"])
    await store.close()

    reopened = SqliteStore(path)
    await reopened.open()
    assert await reopened.conversation("one", "chat") == "r3"
    assert await reopened.history("one", "r3") == history
    assert len(history) == 4
    assert await reopened.given_calls("one", ["call_0", "call_3"]) == given
    assert (await reopened.response("one", "r1")).document is None
    await reopened.add_response(a_response(4), head="r3")
    assert await reopened.conversation("one", "chat") == "r4"
    await reopened.close()


async def test_nothing_is_left_of_responses_that_are_gone(path: Path) -> None:
    now = 1e6
    store = SqliteStore(path, ttl=10.0, clock=lambda: now)
    await store.open()

    def rows() -> dict[str, int]:
        assert store._db
        tables = ("response", "thread", "conversation", "given_call")
        return {table: store._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}

    none = rows()
    for number in range(3):
        await store.add_response(a_response(number).model_copy(update={"conversation": None}))
    for number in range(3):
        assert rows()["thread"] == 1
        await store.delete_response("one", f"r{number}")
    assert rows() == none
    for number in range(3):
        await store.add_response(a_response(number), head=a_response(number).previous)
    now += 11
    assert await store.expire() == 3
    assert rows() == none
    await store.add_response(a_response(0))
    assert set(rows().values()) == {1}
    await store.delete_session("one")
    assert rows() == none
    await store.close()


async def test_one_store_can_be_opened_again(store: SqliteStore) -> None:
    await fill(store)
    before = store.revision("one")
    await store.close()
    await store.open()
    assert store.revision("one") not in (0, before)
    assert (await store.call("one", "c-t1")).call_id == "c-t1"


# --- while it runs --------------------------------------------------------------------------------------------


async def test_an_error_of_sqlite_is_unavailable_and_undoes_the_transaction(store: SqliteStore, path: Path) -> None:
    await fill(store)
    last = await store.last_event_id()
    # A trigger stands for a disk that is full in the middle of a transaction.
    with sqlite3.connect(path, autocommit=True) as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON event BEGIN SELECT raise(ABORT, 'disk full'); END")
    for attempt in (fill(store, "t2"), store.put_policy("one", Policy()), store.answer("one", "c-t1", result=1)):
        with pytest.raises(StoreUnavailable, match="disk full"):
            await attempt
    assert await store.session("one") is None
    assert (await store.look_up("one", turn_ids=["t2"])).turns == {}
    assert (await store.call("one", "c-t1")).result is None
    assert await store.last_event_id() == last
    db.execute("DROP TRIGGER full")
    db.close()
    await fill(store, "t2")
    assert len(await store.events(after=last)) == 2


async def test_another_thread_is_told_instead_of_being_served(store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable, match="thread"):
        await asyncio.to_thread(asyncio.run, store.ping())


async def test_a_look_up_and_the_lists_are_indexed(store: SqliteStore) -> None:
    """Whatever the tables hold, no statement of a request's path reads one from end to end."""
    observed: list[str] = []
    assert store._db
    store._db.set_trace_callback(observed.append)
    await fill(store)
    await fill(store)
    await store.look_up("one", turn_ids=["t1"], keys=[b"t1", b"none"])
    await store.hold("p1", 60.0)
    await store.release("one", "c-t1")
    await store.wait_claimable("one", ["f"], 0)
    await store.claim("one", ["f"], lease=1.0, worker="w")
    await store.next_lease("one", ["f"])
    await store.settle_lost()
    await store.drop("p2")
    await store.answer("one", "c-t1", result=1)
    begun = Turn(turn_id="t2", session="one", visible=[], steps=[], request_key=b"k", proxy_id="p1", created_at=2**40)
    await store.save_turn(begun)
    await store.mark_broken_off("one", "t2")
    assert await store.take_over("one", b"k", window=60.0, proxy_id="p1") is not None
    await store.save_turn(begun.model_copy(update={"delivered": True}))
    await store.turns("one")
    await store.calls(session="one")
    await store.events(after=None, session="one")
    for number in range(3):
        await store.add_response(a_response(number), head=a_response(number).previous)
    await store.history("one", "r2")
    await store.given_calls("one", ["call_0", "call_1", "none"])
    await store.delete_response("one", "r1")
    store._db.set_trace_callback(None)
    tables = ("turn", "call", "event", "response", "conversation", "given_call", "thread", "next")
    statements = {text for text in observed if text.lstrip().startswith(("SELECT", "WITH", "UPDATE", "DELETE"))}
    assert len(statements) > 8
    for text in statements:
        for *_, step in store._db.execute(f"EXPLAIN QUERY PLAN {text}"):
            assert not step.startswith(tuple(f"SCAN {table}" for table in tables)), f"{text}: {step}"
