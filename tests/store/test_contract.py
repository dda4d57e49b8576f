"""The store's contract, sentence by sentence, over every backend: opening and closing, upkeep, no suspension.

Sessions, the ledger, calls, responses and events have a file each.
"""

import asyncio
import itertools

import pytest

from store.base import (
    Store,
    StoreUnavailable,
    UnknownCall,
)
from store.factory import BACKENDS
from store.models import (
    CachedTools,
    Policy,
    Toolset,
)
from tests.store.conftest import TTL, URLS, Clock
from tests.store.records import save


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
    await save(store, "t1", created_at=now, keys=[b"old", b"both"])
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
