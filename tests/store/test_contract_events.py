"""The store's contract about events, and of waiting, over every backend."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from store.base import BadCursor, CursorLost, Store, UnknownCall
from store.models import Event, Policy, Status, ToolRules, Toolset
from tests.store.conftest import TTL, Clock
from tests.store.records import SOON, WORKERS, save, turns_of_the_loop

WEATHER = ["get_weather"]


async def test_events_are_in_order_and_resumable(store: Store) -> None:
    first = await store.last_event_id()
    assert await store.events(after=None) == []
    assert await store.events(after=first) == []
    for number in range(3):
        await save(store, f"t{number}", ("one", "two")[number % 2])
    events = await store.events(after=None)
    ids = [event.event_id for event in events]
    assert len(set(ids)) == len(ids)
    assert await store.events(after=first) == events
    assert await store.last_event_id() == ids[-1]
    assert await store.events(after=ids[2]) == events[3:]
    assert await store.events(after=ids[-1]) == []
    assert await store.events(after=None, limit=2) == events[:2]
    one = [event for event in events if event.session == "one"]
    assert len(one) == 4
    assert await store.events(after=None, session="one") == one
    assert await store.events(after=one[0].event_id, session="one", limit=2) == one[1:3]
    assert all(isinstance(event, Event) for event in events)


async def test_event_ids_are_given_once_whatever_is_deleted(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    last = await store.last_event_id()
    given = {event.event_id for event in await store.events(after=None)}
    clock.now += TTL + 1
    await store.expire()
    assert await store.events(after=None) == []
    assert await store.last_event_id() == last
    await save(store, "t1")
    events = await store.events(after=last)
    assert events == await store.events(after=None)
    assert not given & {event.event_id for event in events}


async def test_a_reader_that_is_behind_events_that_expired_is_told(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    first, *_, last = [event.event_id for event in await store.events(after=None)]
    clock.now += TTL + 1
    while await store.expire():
        pass
    await save(store, "t2")
    later = await store.events(after=None)
    assert await store.events(after=last) == later
    for session in (None, "one"):
        with pytest.raises(CursorLost):
            await store.events(after=first, session=session)
    await store.delete_session("one")
    assert [event.type for event in await store.events(after=last)] == ["session.deleted"], "which says so itself"


async def test_an_event_id_holds_the_epoch_of_the_store(store: Store) -> None:
    await save(store, "t1")
    last = await store.last_event_id()
    assert last.startswith(f"{store.epoch}-")
    number = int(last.removeprefix(f"{store.epoch}-"))
    for lost in (f"{store.epoch}-{number + 1}", f"0badc0de-{number}", str(number)):
        with pytest.raises(CursorLost):
            await store.events(after=lost)
        with pytest.raises(CursorLost):
            await store.follow(None, lost, 60)


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "event1", "9" * 30, "²", "abc-", "abc-x", "-1-1"])
async def test_an_invalid_event_id_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(BadCursor):
        await store.events(after=cursor)


# --- waiting --------------------------------------------------------------------------------------------------


async def test_a_waiter_for_a_call_gets_it_as_soon_as_it_changes(store: Store, clock: Clock) -> None:
    call = await save(store, "t1", call=WORKERS)
    other = await save(store, "t2", call=WORKERS)
    async with asyncio.timeout(SOON):
        for change in (
            lambda: store.claim("one", WEATHER, lease=10.0, worker="w"),
            lambda: store.renew("one", "c-t1", "w", 20.0),
            lambda: store.answer("one", "c-t1", result=1),
        ):
            waiting = asyncio.ensure_future(store.wait_call(call, 60))
            elsewhere = asyncio.ensure_future(store.wait_call(other, 60))
            await turns_of_the_loop()
            assert not waiting.done()
            await change()
            now = await waiting
            assert now == await store.call("one", "c-t1") != call
            assert await store.wait_call(call, 60) == now, "at once where it is another already"
            assert not elsewhere.done()
            elsewhere.cancel()
            call = now
            clock.now += 1
    assert call.status is Status.DONE


async def test_a_waiter_is_not_woken_by_what_happens_to_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to look: fifty waiters in a session cost a write nothing."""
    calls = [await save(store, f"t{number}", call=WORKERS) for number in range(50)]
    waiting = [asyncio.ensure_future(store.wait_call(call, 60)) for call in calls]
    claiming = asyncio.ensure_future(store.wait_claimable("one", ["get_time"], 60))
    await turns_of_the_loop()
    looked: list[str] = []
    look = store.call

    async def noted(session: str, call_id: str) -> Any:
        looked.append(call_id)
        return await look(session, call_id)

    monkeypatch.setattr(store, "call", noted)
    for number in range(10):
        await save(store, f"more{number}", call=WORKERS)
    await store.put_policy("one", Policy(delivery="loop"))
    await store.answer("one", "c-t7", result=1)
    async with asyncio.timeout(SOON):
        await waiting[7]
    await turns_of_the_loop()
    assert [task.done() for task in waiting].count(True) == 1
    assert set(looked) == {"c-t7"}
    assert not claiming.done()
    for task in [*waiting, claiming]:
        task.cancel()


async def test_a_waiter_for_a_deleted_call_is_told_so(store: Store, clock: Clock) -> None:
    async with asyncio.timeout(SOON):
        for end in (lambda: store.delete_session("one"), store.expire):
            call = await save(store, "t1", created_at=clock.now)
            waiting = asyncio.ensure_future(store.wait_call(call, 60))
            await turns_of_the_loop()
            clock.now += TTL + 1
            await end()
            with pytest.raises(UnknownCall):
                await waiting
    with pytest.raises(UnknownCall):
        await store.wait_call(call, 0)


async def test_a_waiting_claimer_is_woken_by_a_claimable_call(store: Store) -> None:
    async def changes(change: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        waiting = asyncio.ensure_future(store.wait_claimable("one", WEATHER, 60))
        await turns_of_the_loop()
        assert not waiting.done()
        await change()
        return await waiting

    async with asyncio.timeout(SOON):
        await save(store, "t1", call={"owner": "workers"})
        await save(store, "t2", "two", call=WORKERS)
        await save(store, "t3", call={**WORKERS, "name": "get_time"})
        assert await changes(lambda: store.release("one", "c-t1"))
        assert await store.wait_claimable("one", WEATHER, 0), "at once where there is one"
        await store.claim("one", WEATHER, lease=60.0, worker="w")
        assert await changes(lambda: store.renew("one", "c-t1", "w", 0))
        await store.claim("one", WEATHER, lease=60.0, worker="w")
        assert await changes(lambda: save(store, "t4", call=WORKERS))
        await store.put_toolset("one", Toolset(rules={"get_weather": ToolRules(approval=True)}))
        assert await changes(lambda: store.put_toolset("one", Toolset()))


async def test_a_waiting_claimer_is_woken_by_the_end_of_a_lease(store: Store) -> None:
    store.clock = store.uptime = asyncio.get_running_loop().time
    await save(store, "t1", call=WORKERS)
    await store.claim("one", WEATHER, lease=0.05, worker="w")
    async with asyncio.timeout(SOON):
        assert await store.wait_claimable("one", WEATHER, 60) is True
        assert await store.claim("one", WEATHER, lease=60.0, worker="w") is not None
        assert await store.wait_claimable("one", WEATHER, 0.01) is False, "its lease is longer than the time"


async def test_a_follower_gets_the_events_of_its_session_as_they_happen(store: Store) -> None:
    start = await store.last_event_id()
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        any_session = [group.create_task(store.follow(None, start, 60)) for _ in range(3)]
        one = group.create_task(store.follow("one", start, 60))
        two = group.create_task(store.follow("two", start, 60))
        await turns_of_the_loop()
        await save(store, "t1", "one")
        events = await store.events(after=start)
        assert await asyncio.gather(*any_session, one) == [events] * 4
        await turns_of_the_loop()
        assert not two.done()
        await store.put_policy("two", Policy())
        assert [event.type for event in await two] == ["session.updated"]
        assert await store.follow("one", None, 0, limit=1) == events[:1]
        assert await store.follow("one", events[-1].event_id, 0) == []


async def test_a_wait_ends_with_its_timeout_and_can_be_cancelled(store: Store) -> None:
    call = await save(store, "t1")
    last = await store.last_event_id()
    for timeout in (0.01, 0, -1):
        assert await store.wait_call(call, timeout) is None
        assert await store.wait_claimable("one", WEATHER, timeout) is False
        assert await store.follow("one", last, timeout) == []
    waiting = [
        asyncio.ensure_future(wait)
        for wait in (
            store.wait_call(call, 60),
            store.wait_claimable("one", WEATHER, 60),
            store.follow("one", last, 60),
        )
    ]
    await turns_of_the_loop()
    for task in waiting:
        task.cancel()
    assert await asyncio.gather(*waiting, return_exceptions=True) != []
    assert all(task.cancelled() for task in waiting)
    await store.answer("one", "c-t1", result=1)


async def test_closing_ends_every_wait(store: Store) -> None:
    call = await save(store, "t1")
    last = await store.last_event_id()
    async with asyncio.timeout(SOON):
        waiting = [
            asyncio.ensure_future(wait)
            for wait in (
                store.wait_call(call, 60),
                store.wait_claimable("one", WEATHER, 60),
                store.follow("one", last, 60),
            )
        ]
        await turns_of_the_loop()
        await store.close()
        assert await asyncio.gather(*waiting) == [None, False, []]
