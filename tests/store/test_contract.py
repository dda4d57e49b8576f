"""The store's contract, sentence by sentence, over every backend: opening and closing, upkeep, no suspension.

Sessions, the ledger, calls, responses and events have a file each.
"""

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from store.base import (
    Store,
    StoreUnavailable,
    UnknownCall,
    run_now,
)
from store.factory import BACKENDS, open_url
from store.models import (
    CachedTools,
    Policy,
    Response,
    Toolset,
)
from tests.store.conftest import TTL, URLS, Clock
from tests.store.records import a_call, a_turn, save


def test_every_backend_is_in_this_suite() -> None:
    assert {BACKENDS[name] for name in URLS} == set(BACKENDS.values())


async def test_closing_twice_is_fine_and_a_closed_store_is_unavailable(store: Store) -> None:
    await store.ping()
    await store.close()
    await store.close()
    for attempt in (store.ping(), store.session("one"), store.call("one", "c1"), store.put_policy("one", Policy())):
        with pytest.raises(StoreUnavailable):
            await attempt


async def test_records_older_than_the_ttl_expire_and_the_rest_stay(store: Store, clock: Clock) -> None:
    now = clock.now
    cached = CachedTools(session="one", cached_content="cachedContents/1", names={}, created_at=now)
    await store.put_toolset("one", Toolset())
    await save(store, "t1", created_at=now, keys=[b"old", b"both"], user_key=b"user")
    await store.put_cached_tools(cached)
    clock.now = now + TTL
    assert await store.expire() == 0, "not older than the ttl yet"
    await save(store, "t2", created_at=now + TTL, keys=[b"new", b"both"])
    await save(store, "t3", created_at=now - 5)
    await store.put_cached_tools(
        cached.model_copy(update={"cached_content": "cachedContents/2", "created_at": now + TTL})
    )
    clock.now += 1

    # two turns with a call each, cached tools, and the events: one of the toolset, two of the first turn
    assert await store.expire() == 4 + 1 + 3

    found = await store.look_up("one", turn_ids=["t1", "t2", "t3"], keys=[b"old", b"new", b"both"])
    assert found.by_key == {b"new": ["t2"], b"both": ["t2"]}
    assert found.turns.keys() == {"t2"}
    assert [call.call_id for call in (await store.calls()).items] == ["c-t2"]
    assert await store.bind("one", b"user", []) is None
    with pytest.raises(UnknownCall):
        await store.call("one", "c-t1")
    assert await store.cached_tools("one", "cachedContents/1") is None
    assert await store.cached_tools("one", "cachedContents/2") is not None
    assert {event.created_at for event in await store.events(after=None)} == {now + TTL}
    assert await store.session("one") is not None, "what a user has set stays"
    assert await store.expire() == 0
    clock.now += TTL + 1
    assert await store.expire() == 2 + 1 + 4
    assert await store.delete_session("one") is True


def test_a_store_that_never_suspends_needs_no_event_loop(tmp_path: Path) -> None:
    for kind in ("memory", "sqlite"):
        store = open_url(URLS[kind](tmp_path), ttl=TTL)
        assert not store.suspends
        call = a_call(owner="workers")
        cached = CachedTools(session="one", cached_content="c", names={}, created_at=1.0)
        steps: list[Coroutine[Any, Any, Any]] = [
            store.open(),
            store.ping(),
            store.put_policy("one", Policy()),
            store.put_toolset("one", Toolset()),
            store.session("one"),
            store.sessions(),
            store.put_cached_tools(cached),
            store.cached_tools("one", "c"),
            store.save_turn(a_turn("t1", "one", call), [call], [b"key"]),
            store.look_up("one", turn_ids=["t1"], keys=[b"key"]),
            store.bind("one", b"", [b"other"]),
            store.turns("one"),
            store.call("one", "c1"),
            store.find_call("c1"),
            store.calls(),
            store.hold("p1", 1.0),
            store.release("one", "c1"),
            store.claim("one", ["get_weather"], lease=1.0, worker="w"),
            store.next_lease("one", ["get_weather"]),
            store.lease_left("one", "c1"),
            store.renew("one", "c1", "w", 0),
            store.start("one", "c1", loop_id="loop"),
            store.settle_lost(),
            store.drop("p1"),
            store.mark_broken_off("one", "t1"),
            store.mark_delivered("one", "t1"),
            store.take_over("one", b"request", window=1.0, proxy_id="p1"),
            store.snapshot("one"),
            store.answer("one", "c1", result=1),
            store.add_response(Response(response_id="r1", session="one", document={}, created_at=1.0)),
            store.response("one", "r1"),
            store.conversation("one", "chat"),
            store.history("one", "r1"),
            store.given_calls("one", ["c1"]),
            store.delete_response("one", "r1"),
            store.last_event_id(),
            store.events(after=None),
            store.expire(),
            store.delete_session("one"),
            store.close(),
        ]
        for step in steps:
            run_now(step)


def test_run_now_says_where_a_coroutine_suspends_after_all() -> None:
    closed = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="has suspended"):
        run_now(suspends())
    assert closed == [True]


async def test_records_of_one_store_do_not_depend_on_how_writes_are_interleaved(store: Store) -> None:
    """Writes are in one total order, the order of the events they leave behind."""
    await asyncio.gather(
        *(
            save(store, f"{session}-{number}", session)
            for session, number in itertools.product(("one", "two"), range(5))
        )
    )
    for session in ("one", "two"):
        listed = [turn.turn_id for turn in (await store.turns(session)).items]
        records = [
            event.data["turn_id"]
            for event in await store.events(after=None, session=session)
            if event.type == "turn.created"
        ]
        assert listed == records
