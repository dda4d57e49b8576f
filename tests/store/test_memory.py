"""Properties of the store in memory alone."""

from collections.abc import AsyncIterator

import pytest

from store.backends.memory import MemoryStore
from store.base import CursorLost
from store.models import Policy


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(ttl=1e6, clock=lambda: 1.0)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(("name", "most"), [("MAX_EVENTS", 80), ("MAX_EVENT_BYTES", 16_000)])
async def test_events_are_bounded_and_a_reader_that_is_behind_is_told(
    store: MemoryStore, name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"store.backends.memory.{name}", most)
    await store.put_policy("first", Policy())
    early = await store.last_event_id()
    for number in range(500):
        await store.put_policy(f"s{number % 3}", Policy())
        assert store._db
        ((count, size),) = store._db.execute("SELECT count(*), sum(length(data)) FROM event")
        assert (count if name == "MAX_EVENTS" else size) <= most
    with pytest.raises(CursorLost):
        await store.events(after=early)
    kept = await store.events(after=None, limit=1000)
    assert [event.event_id for event in await store.events(after=kept[0].event_id, limit=1000)] == [
        event.event_id for event in kept[1:]
    ]
    assert kept[-1].event_id == await store.last_event_id()


async def test_an_event_that_is_larger_than_all_that_is_kept_is_not_kept(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.backends.memory.MAX_EVENT_BYTES", 10)
    await store.put_policy("s", Policy())
    assert await store.events(after=None) == []
    await store.put_policy("s", Policy())
    assert await store.events(after=None) == []
