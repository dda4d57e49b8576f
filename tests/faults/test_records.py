"""Records of another model, and damaged ones: an old chat is no error, and one bad record hides no other."""

import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.backends import _records
from store.backends.sqlite import SqliteStore
from store.base import StoreUnavailable, UnknownCall, UnknownResponse
from store.models import CachedTools, Policy, Response, Toolset
from tests.store.records import WORKERS, save

NOW = 1_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graft.db"


@pytest.fixture(autouse=True)
def forget() -> None:
    _records._logged.clear()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """With two turns of a call each, sessions, a response and cached tools; it is closed."""
    store = SqliteStore(path)
    await store.open()
    for name in ("one", "two"):
        await store.put_toolset(name, Toolset(declarations=[{"name": "get_weather"}]))
    for turn in ("t1", "t2"):
        await save(store, turn, keys=[turn.encode(), b"both"], call=WORKERS)
    for number in (1, 2):
        await store.add_response(Response(response_id=f"r{number}", session="one", document={}, created_at=NOW))
    await store.put_cached_tools(CachedTools(session="one", cached_content="c", names={}, created_at=NOW))
    await store.close()
    yield store
    await store.close()


def change(path: Path, table: str, edit: Callable[[Any], Any] | str, where: str = "1") -> None:
    with closing(sqlite3.connect(path, autocommit=True)) as db:
        for (text,) in db.execute(f"SELECT record FROM {table} WHERE {where}").fetchall():
            record = edit if isinstance(edit, str) else json.dumps(edit(json.loads(text)))
            assert db.execute(f"UPDATE {table} SET record = ? WHERE record = ?", (record, text)).rowcount


TABLES = ("session", "turn", "call", "response", "cached_tools")


def test_every_record_carries_the_version_of_its_form(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        for table in TABLES:
            versions = db.execute(f"SELECT DISTINCT record ->> 'v' FROM {table}").fetchall()
            assert versions == [(_records.VERSION,)], table


async def everything(store: SqliteStore) -> list[Any]:
    return [
        (await store.sessions()).items,
        (await store.turns("one")).items,
        (await store.calls()).items,
        await store.history("one", "r1"),
        await store.cached_tools("one", "c"),
        await store.look_up("one", keys=[b"t1", b"both"]),
    ]


async def test_fields_that_nobody_knows_and_records_without_a_version_are_read(store: SqliteStore, path: Path) -> None:
    await store.open()
    before = await everything(store)
    await store.close()
    for table in TABLES:
        change(path, table, lambda record: {**record, "of_another_model": {"deep": [1]}})
        change(path, table, lambda record: {name: value for name, value in record.items() if name != "v"})
    await store.open()
    assert await everything(store) == before


async def test_an_optional_field_that_does_not_fit_is_as_if_it_was_never_set(store: SqliteStore, path: Path) -> None:
    change(
        path, "turn", lambda record: {**record, "delivery": "carrier pigeon", "usage": 7, "progress": {"steps": "x"}}
    )
    change(path, "call", lambda record: {**record, "surface": ["developer"], "round": "first"})
    await store.open()
    turns = (await store.turns("one")).items
    assert [(turn.turn_id, turn.delivery, turn.usage) for turn in turns] == [
        ("t1", "placeholder", []),
        ("t2", "placeholder", []),
    ]
    call = await store.call("one", "c-t1")
    assert (call.surface, call.round, call.owner, call.released) == ("", 0, "workers", True)
    found = await store.look_up("one", keys=[b"both"])
    assert found.by_key == {b"both": ["t2", "t1"]}


@pytest.mark.parametrize("field", ["approval", "owner", "released", "status", "redeliver"])
async def test_fields_that_decide_whether_a_call_runs_are_not_guessed(
    store: SqliteStore, path: Path, field: str
) -> None:
    change(path, "call", lambda record: {**record, field: "perhaps"}, "call_id = 'c-t1'")
    await store.open()
    with pytest.raises(UnknownCall, match="cannot be read"):
        await store.call("one", "c-t1")
    assert await store.next_lease("one", ["get_weather"]) is None
    claimed = await store.claim("one", ["get_weather"], lease=9.0, worker="w")
    assert claimed
    assert claimed.call_id == "c-t2"


BROKEN = ("{", "[]", '{"v":9,"made":"of other things"}')


@pytest.mark.parametrize("text", BROKEN)
async def test_one_bad_record_hides_no_other(
    store: SqliteStore, path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    change(path, "turn", text, "turn_id = 't1'")
    change(path, "call", text, "call_id = 'c-t1'")
    change(path, "response", text, "response_id = 'r1'")
    change(path, "session", text, "name = 'one'")
    change(path, "cached_tools", text)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await store.open()
            assert [turn.turn_id for turn in (await store.turns("one")).items] == ["t2"]
            assert [call.call_id for call in (await store.calls()).items] == ["c-t2"]
            assert [call.call_id for call in (await store.calls(limit=1)).items] == []
            found = await store.look_up("one", turn_ids=["t1"], keys=[b"t1", b"t2", b"both"])
            assert found.by_key == {b"t2": ["t2"], b"both": ["t2"]}
            assert found.turns.keys() == {"t2"}
            assert found.calls.keys() == {"c-t2"}
            assert await store.cached_tools("one", "c") is None
            assert (await store.response("one", "r2")).response_id == "r2"
            for _ in range(2):
                with pytest.raises(UnknownResponse, match="cannot be read"):
                    await store.response("one", "r1")
            with pytest.raises(UnknownCall, match="cannot be read"):
                await store.call("one", "c-t1")
            assert [session.name for session in (await store.sessions()).items] == ["two"]
            assert await store.settle_lost() == []
            assert not await store.take_over("one", b"key", window=1.0, proxy_id="p")
            await store.close()
    assert len(caplog.messages) == 5, "each is told of once"


async def test_a_session_that_cannot_be_read_is_not_taken_for_one_without_tools(store: SqliteStore, path: Path) -> None:
    change(path, "session", lambda record: {**record, "toolset": "none"}, "name = 'one'")
    await store.open()
    for refused in (store.session("one"), store.snapshot("one")):
        with pytest.raises(StoreUnavailable, match="session one cannot be read: set its tools again"):
            await refused
    assert await store.session("two")
    reader = SqliteStore(path, read_only=True)
    await reader.open()
    with pytest.raises(StoreUnavailable, match="session one cannot be read"):
        await reader.session("one")
    await reader.close()
    await store.put_toolset("one", Toolset())
    assert (await store.snapshot("one")).record


async def test_a_session_that_cannot_be_read_can_be_deleted(store: SqliteStore, path: Path) -> None:
    change(path, "session", "{", "name = 'one'")
    await store.open()
    assert await store.delete_session("one")
    assert await store.session("one") is None
    await store.put_policy("one", Policy())


async def test_the_event_of_a_damaged_record_keeps_its_place(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, autocommit=True)) as db:
        db.execute("UPDATE event SET data = '{' WHERE event_id = 1")
    await store.open()
    events = await store.events(after=None)
    assert events[0].data == {}
    assert await store.events(after=events[0].event_id, limit=1)


async def test_a_turn_is_delivered_whatever_else_its_record_holds(store: SqliteStore, path: Path) -> None:
    """Its other fields are copied, not read."""
    change(path, "turn", lambda record: {**record, "later": {"n": 2**70}, "usage": "damaged"}, "turn_id = 't1'")
    change(path, "turn", lambda record: {**record, "usage": [{"n": float("nan")}]}, "turn_id = 't2'")
    await store.open()
    for name in ("t1", "t2"):
        assert await store.mark_delivered("one", name)
        assert not await store.mark_delivered("one", name)
        turn = (await store.look_up("one", turn_ids=[name])).turns[name]
        assert turn.delivered
        assert turn.visible
    change(path, "turn", "damaged", "turn_id = 't1'")
    assert not await store.mark_delivered("one", "t1")
