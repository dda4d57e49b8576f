"""Databases of earlier versions, as their code wrote them, are migrated without loss.

A file under `databases` is SQL: the tables, their rows, and the pragmas that identify it.
"""

import contextlib
import json
import math
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.backends._sqlite_file import MIGRATIONS, create
from store.backends.sqlite import SqliteStore
from store.models import Executor, Response, Session, Status, ToolRules, Toolset, Turn

DATABASES = Path(__file__).with_name("databases")
NOW = 1_760_000_100.0
"""A time just after the last record in them."""


def restore(name: str, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript((DATABASES / name).read_text())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    restore("version_3.sql", tmp_path / "graft.db")
    store = SqliteStore(tmp_path / "graft.db", clock=lambda: NOW)
    await store.open()
    yield store
    await store.close()


async def test_sessions_and_cached_tools_are_kept(store: SqliteStore) -> None:
    assert [session.name for session in (await store.sessions()).items] == ["empty", "plain", "work"]
    work = await store.session("work")
    assert work is not None
    assert work.policy.delivery == "loop"
    assert work.toolset is not None
    assert set(work.toolset.rules) == {"get_weather", "lights", "restart"}
    assert work.toolset.rules["lights"].executor is not None
    assert work.toolset.rules["lights"].executor.headers == {"authorization": "Bearer kept"}
    assert work.version > 0, "0 says that there is no session"
    cached = await store.cached_tools("work", "cachedContents/1")
    assert cached is not None
    assert cached.names == {"get_weather": "get_weather_2"}


async def test_turns_are_kept_with_their_keys(store: SqliteStore) -> None:
    assert len((await store.turns("work")).items) == 12
    found = await store.look_up("work", turn_ids=["turn_done"], keys=[b"key-chain", b"key-bound", b"key-turn_failed"])
    assert found.by_key == {
        b"key-chain": ["turn_two"],
        b"key-bound": ["turn_two"],
        b"key-turn_failed": ["turn_failed"],
    }
    assert found.turns["turn_two"].delivered
    assert found.calls["call_done"].result == {"celsius": -3, "n": 2**60}
    assert found.calls["call_failed"].error == "no such city"
    assert [found.calls[call_id].result for call_id in ("call_a", "call_b")] == ["first", None]


async def test_calls_are_kept_in_every_status(store: SqliteStore) -> None:
    calls = (await store.calls()).items
    assert len(calls) == 14
    assert {call.status for call in calls} == set(Status)
    approvals = {call.call_id: call.approval for call in calls if call.approval}
    assert approvals == {"call_waiting": "waiting", "call_approved": "approved", "call_denied": "denied"}


async def test_responses_and_conversations_are_kept(store: SqliteStore) -> None:
    assert await store.conversation("work", "chat") == "resp_2"
    history = await store.history("work", "resp_2")
    assert [response.response_id for response in history] == ["resp_0", "resp_1", "resp_2"]
    assert (await store.response("work", "resp_1")).document is None
    assert set(await store.given_calls("work", ["given_0", "given_1", "given_2"])) == {"given_0", "given_1", "given_2"}
    assert set(await store.given_calls("plain", ["given_alone"])) == {"given_alone"}


async def test_events_are_kept_and_go_on(store: SqliteStore) -> None:
    events = await store.events(after=None, limit=1000)
    assert len(events) == 51
    await store.delete_session("empty")
    assert [event.type for event in await store.events(after=events[-1].event_id)] == ["session.deleted"]


async def test_calls_that_are_open_get_an_owner(store: SqliteStore) -> None:
    """Those of a loop, or of a turn that no client was given to its end, are of a proxy that is gone."""
    known = {call.call_id: call for call in (await store.calls()).items if not call.status.final}
    assert {name: (call.owner, call.released, call.redeliver, call.proxy_id) for name, call in known.items()} == {
        "call_pending": ("workers", True, True, "before"),
        "call_by_hand": ("hand", False, False, None),
        "call_waiting": ("workers", False, False, "loop-1"),
        "call_approved": ("workers", True, False, "loop-1"),
        "call_of_loop": ("loop", False, False, "loop-1"),
        "call_of_worker": ("workers", True, True, "before"),
        "call_live": ("loop", False, False, "live-1"),
        "call_elsewhere": ("hand", False, False, None),
    }
    assert await store.lease_left("work", "call_of_worker") == 0, "its worker was lost"


async def test_calls_of_loops_that_are_gone_are_settled(store: SqliteStore) -> None:
    settled = {call.call_id: call.status for call in await store.settle_lost()}
    assert settled == dict.fromkeys(
        ["call_pending", "call_waiting", "call_approved", "call_of_loop", "call_of_worker", "call_live"], Status.EXPIRED
    )
    assert await store.claim("work", ["get_weather", "restart"], lease=1.0, worker="w") is None


@pytest.mark.parametrize("version", [1, 2])
async def test_a_database_of_the_first_versions_keeps_what_it_has_and_takes_what_came_later(
    tmp_path: Path, version: int
) -> None:
    turn = Turn(turn_id="t1", session="one", visible=[], steps=[], delivered=True, created_at=NOW)
    toolset = Toolset(declarations=[{"name": "f"}], rules={"f": ToolRules(executor=Executor(type="worker"))})
    session = Session(name="one", toolset=toolset, created_at=NOW, updated_at=NOW)
    with contextlib.closing(sqlite3.connect(tmp_path / "graft.db", autocommit=True)) as db:
        db.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1;")
        db.execute("INSERT INTO session VALUES (?, ?)", ("one", session.model_dump_json()))
        db.execute(
            "INSERT INTO turn (session, turn_id, user_key, bound, created_at, record) VALUES (?, ?, ?, ?, ?, ?)",
            ("one", "t1", b"", False, NOW, turn.model_dump_json()),
        )
        for call_id, status in (("c1", "done"), ("c2", "pending")):
            record = {
                **{"call_id": call_id, "session": "one", "name": "f", "args": {}, "status": status},
                **{"turn_id": "t1", "created_at": 1.0, "updated_at": 1.0},
            }
            db.execute(
                "INSERT INTO call (call_id, session, turn, name, status, record) VALUES (?, ?, 1, ?, ?, ?)",
                (call_id, "one", "f", status, json.dumps(record)),
            )
        if version > 1:
            db.executescript(f"{MIGRATIONS[1]} PRAGMA user_version = 2;")
    store = SqliteStore(tmp_path / "graft.db", clock=lambda: NOW)
    await store.open()
    assert await store.session("one") == session.model_copy(update={"version": 1})
    claimed = await store.claim("one", ["f"], lease=1.0, worker="w")
    assert claimed is not None
    assert claimed.call_id == "c2"
    assert await store.claim("one", ["f"], lease=1.0, worker="w") is None
    for number in range(2):
        previous = f"r{number - 1}" if number else None
        response = Response(response_id=f"r{number}", session="one", previous=previous, created_at=NOW)
        await store.add_response(response)
    assert [response.response_id for response in await store.history("one", "r1")] == ["r0", "r1"]
    await store.close()


async def test_an_answer_that_broke_off_before_the_migration_is_taken_over_once(tmp_path: Path) -> None:
    """Undelivered turns had a table of their own until version 10."""
    path = tmp_path / "graft.db"
    turn = Turn(turn_id="t1", session="one", visible=[], steps=[], request_key=b"k", proxy_id="p0", created_at=NOW)
    delivered = turn.model_copy(update={"turn_id": "t2", "delivered": True})
    broken = turn.model_copy(update={"broke_off": 1.0})
    with contextlib.closing(create(path, 10)) as db:
        db.executemany(
            "INSERT INTO turn (seq, session, turn_id, user_key, bound, created_at, record)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (1, "one", "t1", b"", False, NOW, broken.model_dump_json()),
                (2, "one", "t2", b"", False, NOW, delivered.model_dump_json()),
            ],
        )
        db.executemany("INSERT INTO request VALUES (?, ?, ?)", [("one", b"k", 1), ("one", b"gone", 7)])
    store = SqliteStore(path, clock=lambda: NOW)
    await store.open()
    found = await store.take_over("one", b"k", window=math.inf, proxy_id="p1")
    assert found is not None
    assert found[0].turn_id == "t1"
    assert await store.mark_delivered("one", "t1")
    assert not await store.mark_delivered("one", "t1")
    assert await store.take_over("one", b"k", window=math.inf, proxy_id="p1") is None
    await store.close()


@pytest.mark.parametrize("kept", [0, 2])
async def test_numbers_of_events_that_expired_before_the_migration_are_not_given_again(
    tmp_path: Path, kept: int
) -> None:
    """SQLite itself remembered the last one until version 11."""
    path = tmp_path / "graft.db"
    with contextlib.closing(create(path, 11)) as db:
        rows = [(number, "one", "session.deleted", "{}", NOW) for number in range(1, 8)]
        db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", rows)
        db.execute("DELETE FROM event WHERE event_id > ?", (kept,))
    store = SqliteStore(path, clock=lambda: NOW)
    await store.open()
    last = await store.last_event_id()
    assert last.endswith("-7")
    assert len(await store.events(after=None)) == kept
    await store.put_toolset("one", None)
    assert [event.event_id for event in await store.events(after=last)] == [last.replace("-7", "-8")]
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert not db.execute("SELECT * FROM sqlite_sequence WHERE name = 'event'").fetchall()
        assert db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'event'").fetchall()


async def test_numbers_of_expired_events_are_not_given_again_after_a_start(tmp_path: Path) -> None:
    now = NOW
    store = SqliteStore(tmp_path / "graft.db", ttl=60, clock=lambda: now)
    await store.open()
    for _ in range(3):
        await store.put_toolset("one", None)
    last = await store.last_event_id()
    now += 61
    while await store.expire():
        pass
    assert await store.events(after=None) == []
    await store.close()
    await store.open()
    assert await store.last_event_id() == last
    assert (await store.put_toolset("one", None)).version == int(last.rpartition("-")[2]) + 1
    await store.delete_session("one")
    last = await store.last_event_id()
    await store.close()
    await store.open()
    assert await store.last_event_id() == last
    await store.close()
