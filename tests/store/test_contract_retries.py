"""The store's contract about requests that are sent again: an answer that broke off is taken over, once."""

import asyncio
from typing import Any

import pytest

from store.base import Store
from store.models import Call, Progress, Status, Turn
from tests.store.conftest import TTL, Clock
from tests.store.records import WORKERS, a_call, a_turn, revision_of

KEY = b"the request"
WEATHER = ["get_weather"]


async def answering(
    store: Store, turn_id: str = "t1", *calls: Call, session: str = "one", proxy: str = "p1", **fields: Any
) -> Turn:
    """A turn of a proxy that is alive, with one call of its own where none are given."""
    await store.hold(proxy, 60.0)
    own = calls or (a_call(f"c-{turn_id}", turn_id, session, owner="loop", proxy_id=proxy),)
    turn = a_turn(turn_id, session, *own, **{"request_key": KEY, "proxy_id": proxy, **fields})
    await store.save_turn(turn, own)
    return turn


async def try_take(store: Store, *, session: str = "one", key: bytes = KEY, proxy: str = "p2") -> str | None:
    await store.hold(proxy, 60.0)
    found = await store.take_over(session, key, window=60.0, proxy_id=proxy)
    return found[0].turn_id if found else None


async def test_an_answer_that_broke_off_is_taken_over_with_its_calls(store: Store, clock: Clock) -> None:
    done = a_call("c1", "t1", owner="loop", proxy_id="p1")
    running = a_call("c2", "t1", owner="loop", proxy_id="p1")
    turn = await answering(store, "t1", done, running)
    answered, _ = await store.answer("one", "c1", result={"n": 1})
    started = await store.start("one", "c2", loop_id="loop")
    clock.now += 5
    assert await store.mark_broken_off("one", "t1") is True
    broken = (await store.look_up("one", turn_ids=["t1"])).turns["t1"]
    assert broken == turn.model_copy(update={"broke_off": clock.now})
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("turn.updated", broken.model_dump(mode="json"))
    clock.now += 5
    found = await store.take_over("one", KEY, window=60.0, proxy_id="p1")
    assert found == (turn, [answered, started])
    assert (await store.look_up("one", turn_ids=["t1"])).turns["t1"] == turn
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("turn.updated", turn.model_dump(mode="json"))


async def test_an_answer_is_taken_over_once_and_again_once_it_has_broken_off_again(store: Store) -> None:
    await answering(store)
    for _ in range(3):
        await store.mark_broken_off("one", "t1")
        assert [await try_take(store), await try_take(store)] == ["t1", None]


async def test_one_of_two_concurrent_retries_takes_over(store: Store) -> None:
    await answering(store)
    await store.mark_broken_off("one", "t1")
    found = await asyncio.gather(*(try_take(store, proxy=f"p{number}") for number in range(4)))
    assert sorted(found, key=str) == [None, None, None, "t1"]


async def test_an_answer_in_progress_is_not_taken_over(store: Store) -> None:
    await answering(store)
    assert await try_take(store) is None


async def test_a_turn_that_was_delivered_is_never_taken_over(store: Store) -> None:
    turn = await answering(store)
    await store.mark_broken_off("one", "t1")
    await store.save_turn(turn.model_copy(update={"delivered": True}))
    assert await try_take(store) is None
    assert await store.mark_broken_off("one", "t1") is False
    assert (await store.look_up("one", turn_ids=["t1"])).turns["t1"].delivered


async def test_a_turn_that_its_client_has_is_delivered_and_no_longer_taken_over(store: Store) -> None:
    turn = await answering(store, progress=Progress(steps=1, visible=0, rounds=1))
    await store.mark_broken_off("one", "t1")
    assert await store.mark_delivered("one", "t1") is True
    found = (await store.look_up("one", turn_ids=["t1"])).turns["t1"]
    assert (found.delivered, found.progress) == (True, None)
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("turn.updated", found.model_dump(mode="json"))
    assert found == turn.model_copy(update={"delivered": True, "progress": None, "broke_off": found.broke_off})
    assert await try_take(store) is None
    assert await store.mark_delivered("one", "t1") is False


async def test_a_turn_that_is_delivered_is_told_before_a_newer_one_that_is_not(store: Store) -> None:
    for number in (1, 2):
        await store.save_turn(a_turn(f"t{number}", "one", request_key=KEY), keys=[b"said"])
    assert await store.mark_delivered("one", "t1")
    assert (await store.look_up("one", keys=[b"said"])).by_key[b"said"] == ["t1", "t2"]


async def test_a_deleted_turn_is_not_delivered(store: Store) -> None:
    await answering(store)
    assert await store.mark_delivered("two", "t1") is False
    await store.delete_session("one")
    assert await store.mark_delivered("one", "t1") is False
    assert (await store.turns("one")).items == []


async def test_an_answer_is_taken_over_within_the_window_and_not_later(store: Store, clock: Clock) -> None:
    await answering(store)
    await store.mark_broken_off("one", "t1")
    clock.now += 60.1
    assert await try_take(store) is None
    clock.now -= 0.1
    assert await try_take(store) == "t1"


async def test_the_newest_answer_is_taken_over_first(store: Store) -> None:
    for number in range(3):
        await answering(store, f"t{number}")
        await store.mark_broken_off("one", f"t{number}")
    assert [await try_take(store) for _ in range(4)] == ["t2", "t1", "t0", None]


@pytest.mark.parametrize(("session", "key"), [("two", KEY), ("one", b"another"), ("one", b"")])
async def test_another_request_takes_nothing_over(store: Store, session: str, key: bytes) -> None:
    await answering(store)
    await answering(store, "none", request_key=b"")
    for turn_id in ("t1", "none"):
        await store.mark_broken_off("one", turn_id)
    assert await try_take(store, session=session, key=key) is None


async def test_a_proxy_gives_back_only_what_it_has(store: Store) -> None:
    await answering(store)
    await store.mark_broken_off("one", "t1")
    assert await try_take(store, proxy="p2") == "t1"
    assert await store.mark_broken_off("one", "t1", proxy_id="p1") is False
    assert await try_take(store, proxy="p1") is None
    assert await store.mark_broken_off("one", "t1", proxy_id="p2") is True
    assert await try_take(store, proxy="p1") == "t1"


async def test_an_unknown_turn_and_one_that_broke_off_before_do_not_break_off(store: Store, clock: Clock) -> None:
    assert await store.mark_broken_off("one", "t1") is False
    await answering(store)
    assert await store.mark_broken_off("two", "t1") is False
    assert await store.mark_broken_off("one", "t1") is True
    last = await store.last_event_id()
    clock.now += 30
    assert await store.mark_broken_off("one", "t1") is False, "the first time counts"
    assert await store.last_event_id() == last
    clock.now += 31
    assert await try_take(store) is None


async def test_saving_again_leaves_it_broken_off_and_its_proxy_s(store: Store) -> None:
    turn = await answering(store)
    await store.mark_broken_off("one", "t1")
    await store.save_turn(turn.model_copy(update={"proxy_id": None, "usage": [{"totalTokenCount": 3}]}))
    saved = (await store.look_up("one", turn_ids=["t1"])).turns["t1"]
    assert saved.broke_off is not None
    assert saved.proxy_id == "p1"
    assert saved.usage != []
    assert await try_take(store) == "t1"


# --- proxies that are gone ------------------------------------------------------------------------------------


async def test_the_answer_of_a_proxy_that_died_broke_off_when_it_was_last_alive(store: Store, clock: Clock) -> None:
    await answering(store)
    clock.now += 50
    await store.hold("p1", 10.0)
    clock.now += 9
    waiting = asyncio.ensure_future(try_take(store))
    await asyncio.wait({waiting}, timeout=0.3)
    assert not waiting.done() or waiting.result() is None, "its lease holds"
    clock.now += 51
    assert (await waiting or await try_take(store)) == "t1"
    assert await try_take(store) is None


async def test_the_answer_of_a_proxy_that_died_long_ago_is_not_taken_over(store: Store, clock: Clock) -> None:
    await answering(store)
    clock.now += 61
    assert await try_take(store) is None


async def test_the_answer_of_a_proxy_that_stopped_broke_off_then(store: Store, clock: Clock) -> None:
    await answering(store)
    clock.now += 50
    await store.drop("p1")
    clock.now += 60
    assert await try_take(store) == "t1"


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_opening_the_store_leaves_what_proxies_had_begun_to_be_taken_over(store: Store, clock: Clock) -> None:
    await answering(store)
    await store.answer("one", "c-t1", result="kept")
    await store.close()
    await store.open()
    clock.now += 5
    found = await store.take_over("one", KEY, window=60.0, proxy_id="p2")
    assert found is not None
    assert [call.result for call in found[1]] == ["kept"]


async def test_an_answer_is_the_proxy_s_that_took_it_over(store: Store, clock: Clock) -> None:
    await answering(store)
    await store.mark_broken_off("one", "t1")
    await store.hold("p2", 10.0)
    found = await store.take_over("one", KEY, window=60.0, proxy_id="p2")
    assert found is not None
    assert found[0].proxy_id == "p2"
    clock.now += 10
    assert await try_take(store, proxy="p3") == "t1", "that one died as well"


async def test_calls_of_an_answer_that_is_taken_over_are_settled_or_the_new_proxy_s(store: Store, clock: Clock) -> None:
    known = {"owner": "loop", "proxy_id": "p1"}
    await answering(
        store,
        "t1",
        a_call("pending", "t1", **known),
        a_call("own", "t1", **known),
        a_call("final", "t1", **known),
        a_call("worker-s", "t1", **{**known, **WORKERS}),
        a_call("by-hand", "t1"),
    )
    await store.start("one", "own", loop_id="loop")
    await store.answer("one", "final", result=1)
    await store.claim("one", WEATHER, lease=90.0, worker="w")
    await store.drop("p1")
    clock.now += 5
    await store.hold("p2", 60.0)
    found = await store.take_over("one", KEY, window=60.0, proxy_id="p2")
    assert found is not None
    assert [(call.call_id, call.status, call.proxy_id) for call in found[1]] == [
        ("pending", Status.EXPIRED, "p1"),
        ("own", Status.EXPIRED, "p1"),
        ("final", Status.DONE, "p1"),
        ("worker-s", Status.RUNNING, "p2"),
        ("by-hand", Status.PENDING, None),
    ]
    for call in found[1]:
        assert await store.call("one", call.call_id) == call
    assert await store.settle_lost() == []


async def test_the_revision_changes_as_an_answer_breaks_off_and_is_taken_over(store: Store) -> None:
    await answering(store)
    revisions = [await revision_of(store)]
    await store.mark_broken_off("one", "t1")
    revisions.append(await revision_of(store))
    await try_take(store)
    revisions.append(await revision_of(store))
    assert None not in revisions
    assert len(set(revisions)) == 3


async def test_a_deleted_turn_is_not_taken_over(store: Store, clock: Clock) -> None:
    for end in ("delete", "expire"):
        await answering(store, created_at=clock.now)
        await store.mark_broken_off("one", "t1")
        if end == "delete":
            await store.delete_session("one")
        else:
            clock.now += TTL + 1
            await store.expire()
        found = await store.take_over("one", KEY, window=10 * TTL, proxy_id="p2")
        assert found is None
