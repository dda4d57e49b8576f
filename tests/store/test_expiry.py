"""Old records are deleted in batches, because everybody else waits for each batch."""

import itertools

from store.base import BATCH, Store
from store.models import CachedTools, Response
from tests.store.conftest import TTL, Clock
from tests.store.records import save


async def fill(store: Store, count: int) -> None:
    for number in range(count):
        await save(store, f"t{number}", keys=[b"%d" % number], created_at=store.clock())
        await store.save_plain("one", [b"plain%d" % number])
        cached = CachedTools(session="one", cached_content=f"c{number}", names={}, created_at=store.clock())
        await store.put_cached_tools(cached)
        await store.add_response(Response(response_id=f"r{number}", session="one", created_at=store.clock()))


async def test_many_old_records_go_in_batches(store: Store, clock: Clock) -> None:
    count = 3 * BATCH
    await fill(store, count)
    await store.add_response(Response(response_id="long", session="one", created_at=store.clock()))
    for number in range(100):
        previous = f"long{number - 1}" if number else "long"
        response = Response(response_id=f"long{number}", session="one", previous=previous, created_at=store.clock())
        await store.add_response(response)
    clock.now += TTL + 1
    remaining = count
    for _ in itertools.count():
        gone = await store.expire()
        now = len((await store.turns("one", limit=2 * count)).items)
        assert remaining - now <= BATCH
        assert len((await store.calls(limit=2 * count)).items) == now, "a turn goes with its calls"
        remaining = now
        if not gone:
            break
    assert remaining == 0
    assert await store.events(after=None) == []
    assert await store.cached_tools("one", f"c{count - 1}") is None
    assert await store.expire() == 0


async def test_notes_of_turns_go_in_batches_too(store: Store, clock: Clock) -> None:
    await fill(store, 3 * BATCH)
    clock.now += TTL + 1
    while await store.expire():
        pass
    keys = [b"plain%d" % number for number in range(3 * BATCH)]
    assert (await store.look_up("one", keys=keys)).plain.keys() == set(keys)
    clock.now += TTL + 7200
    remaining = len(keys)
    while await store.expire():
        now = len((await store.look_up("one", keys=keys)).plain)
        assert remaining - now <= 2 * BATCH
        remaining = now
    assert remaining == 0
