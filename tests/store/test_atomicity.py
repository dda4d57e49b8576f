"""A write happens completely or not at all: it is interrupted before each of its statements, in two ways.

Either the statement fails, as on a full disk, and the store goes on: nothing of the write is in the file or in the
store's memory. Or the process ends there: the file then holds the state before the write or, once it was committed, the
complete write.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.backends.sqlite import PATIENT, SqliteStore
from store.base import StoreUnavailable
from store.models import CachedTools, Policy, Response, Status, Toolset, UndeliveredAnswer
from tests.store.conftest import TTL, Clock
from tests.store.records import WORKERS, a_call, a_turn, save

WEATHER = ["get_weather"]
TURN = a_turn("new", "one", request_key=b"request", proxy_id="p1")
RESPONSE = Response(
    response_id="r3", session="one", conversation="chat", previous="r2", calls={"given": {"n": 1}}, created_at=1.0
)

type Write = Callable[[SqliteStore], Coroutine[Any, Any, Any]]

PART = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0K" * 2000}}
WRITES: dict[str, Write] = {
    "put_policy": lambda store: store.put_policy("one", Policy(delivery="loop")),
    "put_toolset": lambda store: store.put_toolset("new", Toolset()),
    "delete_session": lambda store: store.delete_session("one"),
    "put_cached_tools": lambda store: store.put_cached_tools(
        CachedTools(session="one", cached_content="c", names={}, created_at=1.0)
    ),
    "save_turn": lambda store: store.save_turn(
        TURN, [a_call("n1", "new"), a_call("n2", "new", **WORKERS)], [b"k1", b"k2"]
    ),
    "save_turn again": lambda store: store.save_turn(
        a_turn("t1", "one", delivered=True, request_key=b"old"), [a_call("n1", "t1")], [b"k1"]
    ),
    "save_plain": lambda store: store.save_plain("one", [b"headed-same-word", b"headed-same-word-other"], b"chain"),
    "answer": lambda store: store.answer("one", "c-t1", result=1),
    "answer with parts": lambda store: store.answer("one", "c-t1", result=1, parts=[PART]),
    "release": lambda store: store.release("one", "c-unreleased"),
    "claim": lambda store: store.claim("one", WEATHER, lease=1.0, worker="w"),
    "renew": lambda store: store.renew("one", "c-leased", "w", 0),
    "start": lambda store: store.start("one", "c-t1", loop_id="loop"),
    "decide": lambda store: store.decide("one", "c-waiting", True),
    "settle": lambda store: store.settle("one", "c-t1", Status.EXPIRED, error="no"),
    "settle_lost": lambda store: store.settle_lost(),
    "hold": lambda store: store.hold("p2", 60.0),
    "drop": lambda store: store.drop("p1"),
    "mark_broken_off": lambda store: store.mark_broken_off("one", "t1"),
    "mark_delivered": lambda store: store.mark_delivered("one", "t1"),
    "take_over": lambda store: store.take_over("one", b"broken", window=60.0, proxy_id="p1"),
    "add_response": lambda store: store.add_response(RESPONSE, head="r2"),
    "add_response undelivered": lambda store: store.add_response(
        RESPONSE, head="r2", undelivered=UndeliveredAnswer(b"new", "p1", {"n": 1})
    ),
    "take_back": lambda store: store.take_back("one", "r2", head="r1"),
    "mark_handed_over": lambda store: store.mark_handed_over("one", "alone"),
    "mark_not_handed_over": lambda store: store.mark_not_handed_over("one", "alone"),
    "take_answer": lambda store: store.take_answer("one", b"lost", window=60.0, proxy_id="p1"),
    "delete_response": lambda store: store.delete_response("one", "alone"),
    "expire": lambda store: store.expire(),
}


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    """A store that holds something for each of the writes to do."""
    store = SqliteStore(tmp_path / "graft.db", ttl=TTL, clock=clock)
    await store.open()
    await save(store, "old", keys=[b"old"], created_at=clock.now - TTL - 1)
    await store.put_toolset("one", Toolset())
    await store.hold("p1", 60.0)
    await save(store, "leased", call=WORKERS)
    await store.claim("one", WEATHER, lease=30.0, worker="w")
    await save(store, "t1", keys=[b"t1"], call=WORKERS, request_key=b"old")
    await save(store, "unreleased", call={"owner": "workers", "proxy_id": "p1"})
    await save(store, "waiting", call={"approval": "waiting", "proxy_id": "p1"})
    await save(store, "lost", call={"owner": "loop", "proxy_id": "gone"})
    await save(store, "broken", request_key=b"broken", proxy_id="p1")
    await store.mark_broken_off("one", "broken")
    for response_id, key in (("alone", b"sent"), ("lost", b"lost")):
        response = Response(response_id=response_id, session="one", document={}, created_at=1.0)
        await store.add_response(response, undelivered=UndeliveredAnswer(key, "p1", {"n": 1}))
    await store.mark_not_handed_over("one", "lost")
    for number in range(3):
        previous = f"r{number - 1}" if number else None
        response = Response(
            response_id=f"r{number}", session="one", conversation="chat", previous=previous, document={}, created_at=1.0
        )
        await store.add_response(response, head=previous)
    yield store
    await store.close()


class Failing:
    """A connection whose statement of this number fails, counted from the one that begins a transaction."""

    def __init__(self, db: sqlite3.Connection, number: int, before: Callable[[], None] = lambda: None) -> None:
        self._db = db
        self._left = number
        self._before = before
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, statement: str, values: Any = ()) -> Any:
        self._step(statement)
        return self._db.execute(statement, values)

    def executemany(self, statement: str, values: Any) -> Any:
        self._step(statement)
        return self._db.executemany(statement, values)

    def _step(self, statement: str) -> None:
        if statement.startswith(("ROLLBACK", "PRAGMA")):
            return
        self._before()
        self._left -= 1
        if self._left == 0:
            self.failed = True
            raise sqlite3.OperationalError("disk full")


def dump(path: Path) -> dict[str, list[Any]]:
    """The rows of every table."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
        return {name: db.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}


async def remembered(store: SqliteStore) -> tuple[Any, ...]:
    """The results that the store computes from its memory."""
    return (
        [await store.snapshot(name) for name in ("one", "new")],
        await store.last_event_id(),
        store.revision("one"),
        store._proxies(store.clock()) - {"p2"},  # a proxy that is alive is so also if that cannot be noted
    )


@contextlib.contextmanager
def failing(store: SqliteStore, number: int, before: Callable[[], None] = lambda: None) -> Iterator[Failing]:
    assert store._db
    db, store._db = store._db, Failing(store._db, number, before)  # type: ignore[assignment]
    try:
        yield store._db  # type: ignore[misc]
    finally:
        store._db = db


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_fails_at_any_statement_leaves_nothing(store: SqliteStore, name: str) -> None:
    before, known = dump(store.path), await remembered(store)
    for number in range(1, 100):
        with failing(store, number) as db:
            try:
                await WRITES[name](store)
            except StoreUnavailable:
                assert db.failed
            else:
                assert not db.failed
                break
        assert dump(store.path) == before
        assert await remembered(store) == known
    assert number > 2, "it has begun, written and committed"
    assert dump(store.path) != before


@pytest.mark.parametrize("name", WRITES)
async def test_a_process_that_ends_at_any_statement_leaves_all_or_nothing(
    store: SqliteStore, tmp_path: Path, name: str
) -> None:
    before, left = dump(store.path), tmp_path / "left"
    copies: list[Path] = []

    def copied() -> None:
        folder = left / str(len(copies))
        folder.mkdir(parents=True)
        for suffix in ("", "-wal"):
            shutil.copy(f"{store.path}{suffix}", folder)
        copies.append(folder / store.path.name)

    with failing(store, 0, copied):
        await WRITES[name](store)
    after = dump(store.path)
    copied()
    states = [dump(copy) for copy in copies]
    assert all(state == before for state in states[:-1])
    assert states[-1] == after != before
    for copy in copies[-2:]:
        reopened = SqliteStore(copy, ttl=TTL, clock=store.clock)
        await reopened.open()
        await reopened.settle_lost()
        await reopened.close()


def test_every_write_is_tried() -> None:
    reads = {
        "session",
        "sessions",
        "snapshot",
        "call",
        "find_call",
        "calls",
        "calls_cursor",
        "next_lease",
        "lease_left",
        "look_up",
    }
    reads |= {
        "turns",
        "events",
        "last_event_id",
        "cached_tools",
        "response",
        "responses",
        "conversation",
        "history",
        "given_calls",
    }
    reads |= {"ping", "_is_claimable"}
    assert {name.partition(" ")[0] for name in WRITES} == PATIENT - reads
