"""The store's contract about who owns a call: releases, lost workers, proxies and their leases."""

from typing import Any

import pytest

from store.base import AlreadyAnswered, LeaseLost, NotPending, ProxyGone, Store, UnknownCall
from store.models import Call, Status
from tests.store.conftest import Clock
from tests.store.records import revision_of, save

WEATHER = ["get_weather"]
WORKER_LOST = "the worker that ran this call was lost; the call may have run"


async def born(store: Store, turn_id: str, session: str = "one", **fields: Any) -> Call:
    """A call of workers, of the id `c-TURN`, that is not released yet, but for these fields."""
    return await save(store, turn_id, session, call={"owner": "workers", **fields})


async def claim(store: Store, *, lease: float = 30.0) -> str | None:
    call = await store.claim("one", WEATHER, lease=lease, worker="w")
    return call.call_id if call else None


async def status(store: Store, call_id: str) -> Status:
    return (await store.find_call(call_id)).status


# --- releases -------------------------------------------------------------------------------------------------


async def test_a_worker_s_call_is_claimed_once_it_is_released_and_not_before(store: Store) -> None:
    call = await born(store, "t1")
    assert await claim(store) is None
    released = await store.release("one", "c-t1")
    assert released == call.model_copy(update={"released": True, "updated_at": released.updated_at})
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("call.updated", released.model_dump(mode="json"))
    assert await store.release("one", "c-t1") == released
    assert await store.last_event_id() == event.event_id, "the same again changes nothing"
    assert await claim(store) == "c-t1"
    assert (await store.release("one", "c-t1")).status is Status.RUNNING, "nor does it while a worker has it"


@pytest.mark.parametrize("owner", ["loop", "hand"])
async def test_a_call_of_another_owner_is_no_worker_s(store: Store, owner: str) -> None:
    await born(store, "t1", owner=owner, released=True)
    assert await claim(store) is None
    await born(store, "t2", owner=owner)
    with pytest.raises(NotPending):
        await store.release("one", "c-t2")


async def test_a_call_that_waits_is_run_or_is_final_is_not_released(store: Store) -> None:
    await born(store, "waiting", approval="waiting", loop_id="loop")
    for turn in ("started", "final"):
        await born(store, turn)
    await store.start("one", "c-started", loop_id="loop")
    await store.answer("one", "c-final", result=1)
    for call_id in ("c-waiting", "c-started", "c-final"):
        with pytest.raises(NotPending) as refused:
            await store.release("one", call_id)
        assert refused.value.call == await store.call("one", call_id)
    await store.decide("one", "c-waiting", True)
    assert await claim(store) is None, "approved, and not released"
    await store.release("one", "c-waiting")
    assert await claim(store) == "c-waiting"


# --- the session of a call ------------------------------------------------------------------------------------


async def test_a_call_is_found_by_its_id_and_known_in_its_session_alone(store: Store) -> None:
    call = await born(store, "t1")
    assert await store.find_call("c-t1") == call
    for attempt in (
        store.call("two", "c-t1"),
        store.release("two", "c-t1"),
        store.lease_left("two", "c-t1"),
        store.renew("two", "c-t1", "w", 1.0),
        store.start("two", "c-t1", loop_id="loop"),
        store.decide("two", "c-t1", True),
        store.settle("two", "c-t1", Status.EXPIRED, error="no"),
        store.answer("two", "c-t1", result=1),
    ):
        with pytest.raises(UnknownCall, match="c-t1"):
            await attempt
    assert await store.call("one", "c-t1") == call
    with pytest.raises(UnknownCall, match="c-t2"):
        await store.find_call("c-t2")


# --- workers that are lost ------------------------------------------------------------------------------------


async def test_the_rest_of_a_lease_is_given_in_seconds(store: Store, clock: Clock) -> None:
    await born(store, "t1", released=True)
    assert await store.lease_left("one", "c-t1") is None
    await claim(store, lease=30.0)
    clock.now += 10
    assert await store.lease_left("one", "c-t1") == 20
    clock.now += 100
    assert await store.lease_left("one", "c-t1") == 0
    await store.answer("one", "c-t1", result=1)
    assert await store.lease_left("one", "c-t1") is None


async def test_a_call_whose_worker_was_lost_fails_and_goes_to_no_other(store: Store, clock: Clock) -> None:
    await born(store, "t1", released=True)
    await born(store, "t2", released=True)
    assert await claim(store, lease=5.0) == "c-t1"
    clock.now += 5
    assert await claim(store) == "c-t2", "the claim goes on behind it"
    lost = await store.call("one", "c-t1")
    assert (lost.status, lost.error, lost.lease_until) == (Status.FAILED, WORKER_LOST, None)
    reported = [event.data["status"] for event in await store.events(after=None) if event.data.get("call_id") == "c-t1"]
    assert reported == ["pending", "running", "failed"]
    with pytest.raises(LeaseLost):
        await store.renew("one", "c-t1", "w", 5.0)
    with pytest.raises(AlreadyAnswered):
        await store.answer("one", "c-t1", result="too late")


async def test_a_lost_call_is_settled_also_where_there_is_no_other_to_claim(store: Store, clock: Clock) -> None:
    await born(store, "t1", released=True)
    await claim(store, lease=5.0)
    clock.now += 5
    before = await revision_of(store)
    assert await claim(store) is None
    assert await status(store, "c-t1") is Status.FAILED
    assert await revision_of(store) != before


async def test_settling_what_is_lost_fails_calls_whose_lease_ran_out_and_leaves_the_others(
    store: Store, clock: Clock
) -> None:
    for turn in ("once", "again", "later", "free"):
        await born(store, turn, released=True, redeliver=turn == "again")
    for lease in (5.0, 5.0, 50.0):
        await claim(store, lease=lease)
    clock.now += 5
    settled = await store.settle_lost()
    assert [(call.call_id, call.status, call.error) for call in settled] == [("c-once", Status.FAILED, WORKER_LOST)]
    assert await store.call("one", "c-once") == settled[0]
    assert await store.settle_lost() == []
    assert [await claim(store) for _ in range(3)] == ["c-again", "c-free", None]


# --- proxies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_proxy_s_lease_is_a_time_above_zero(store: Store, lease: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        await store.hold("p1", lease)


async def test_calls_of_a_proxy_without_a_lease_expire_and_are_not_handed_on(store: Store, clock: Clock) -> None:
    await store.hold("p1", 10.0)
    await store.hold("p2", 60.0)
    await born(store, "released", proxy_id="p1", released=True, redeliver=True)
    await born(store, "pending", proxy_id="p1")
    await born(store, "own", proxy_id="p1", owner="loop")
    await born(store, "final", proxy_id="p1", owner="loop")
    await born(store, "other", proxy_id="p2", owner="loop")
    await born(store, "nobody-s", owner="hand")
    await store.start("one", "c-own", loop_id="loop")
    await store.start("one", "c-other", loop_id="loop")
    await store.answer("one", "c-final", result=1)
    assert await store.settle_lost() == []
    clock.now += 5
    await store.hold("p1", 10.0)
    clock.now += 9
    assert await store.settle_lost() == [], "the lease was renewed"
    clock.now += 1
    assert await claim(store) is None, "whoever notices expires it"
    assert await status(store, "c-released") is Status.EXPIRED
    settled = {call.call_id: (call.status, "may have run" in (call.error or "")) for call in await store.settle_lost()}
    assert settled == {"c-pending": (Status.EXPIRED, False), "c-own": (Status.EXPIRED, True)}
    assert [await status(store, f"c-{turn}") for turn in ("final", "other", "nobody-s")] == [
        Status.DONE,
        Status.RUNNING,
        Status.PENDING,
    ]


@pytest.mark.parametrize(("redeliver", "ends"), [(False, Status.FAILED), (True, Status.EXPIRED)])
async def test_a_call_that_a_worker_runs_stays_the_worker_s_until_its_lease_is_out(
    store: Store, clock: Clock, redeliver: bool, ends: Status
) -> None:
    await store.hold("p1", 10.0)
    await born(store, "t1", proxy_id="p1", released=True, redeliver=redeliver)
    await claim(store, lease=30.0)
    clock.now += 20
    assert await store.settle_lost() == []
    await store.renew("one", "c-t1", "w", 30.0)
    clock.now += 30
    (lost,) = await store.settle_lost()
    assert (lost.status, lost.error) == (ends, WORKER_LOST)


async def test_the_worker_of_a_proxy_that_is_gone_may_still_answer(store: Store, clock: Clock) -> None:
    await store.hold("p1", 10.0)
    await born(store, "t1", proxy_id="p1", released=True)
    await claim(store, lease=30.0)
    await store.drop("p1")
    assert (await store.answer("one", "c-t1", result=1))[1] is True


async def test_a_proxy_that_stops_settles_its_own_calls_and_no_others(store: Store, clock: Clock) -> None:
    for proxy in ("p1", "p2"):
        await store.hold(proxy, 10.0)
        await born(store, proxy, proxy_id=proxy, owner="loop")
    await born(store, "lost", released=True)
    await claim(store, lease=5.0)
    clock.now += 5
    settled = await store.drop("p1")
    assert [(call.call_id, call.status) for call in settled] == [("c-p1", Status.EXPIRED)]
    assert await store.drop("p1") == []
    assert await store.drop("never held") == []
    assert await status(store, "c-p2") is Status.PENDING
    assert [call.call_id for call in await store.settle_lost()] == ["c-lost"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_for_a_proxy_that_is_gone_expires_the_call(store: Store, clock: Clock, approved: bool) -> None:
    await store.hold("p1", 10.0)
    await born(store, "t1", proxy_id="p1", owner="loop", approval="waiting", loop_id="loop")
    clock.now += 10
    with pytest.raises(ProxyGone) as gone:
        await store.decide("one", "c-t1", approved)
    assert gone.value.call == await store.call("one", "c-t1")
    assert gone.value.call.status is Status.EXPIRED
    event = (await store.events(after=None))[-1]
    assert event.data["status"] == "expired"


async def test_a_decision_for_a_proxy_that_is_there_stands(store: Store, clock: Clock) -> None:
    await store.hold("p1", 10.0)
    await born(store, "t1", proxy_id="p1", owner="loop", approval="waiting", loop_id="loop")
    assert (await store.decide("one", "c-t1", True)).approval == "approved"
    clock.now += 10
    assert (await store.decide("one", "c-t1", True)).approval == "approved", "the same again changes nothing"


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_opening_a_store_that_one_process_writes_ends_the_leases_of_all_proxies(
    store: Store, clock: Clock
) -> None:
    await store.hold("p1", 1000.0)
    await born(store, "t1", proxy_id="p1", owner="loop")
    await store.close()
    await store.open()
    assert [call.call_id for call in await store.settle_lost()] == ["c-t1"]


async def test_calls_of_many_sessions_are_settled_in_the_order_they_were_saved(store: Store) -> None:
    for number in range(6):
        await born(store, f"t{number}", ("one", "two")[number % 2], proxy_id="gone", owner="loop")
    settled = await store.settle_lost()
    for first, session in enumerate(("one", "two")):
        reported = [call.call_id for call in settled if call.session == session]
        assert reported == [f"c-t{number}" for number in range(first, 6, 2)]
