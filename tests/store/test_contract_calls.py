"""The store's contract about calls: listed, answered, over every backend."""

import asyncio
from typing import Any

import pytest

from store.base import (
    AlreadyAnswered,
    BadCursor,
    Store,
    UnknownCall,
)
from store.models import (
    Status,
)
from tests.store.conftest import TTL, Clock
from tests.store.records import WORKERS, a_call, a_turn, save


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, ["c0", "c1", "c2", "c3", "c4", "c5"]),
        ({"session": "one"}, ["c0", "c2", "c4"]),
        ({"session": "none"}, []),
        ({"status": Status.PENDING}, ["c2", "c3", "c4", "c5"]),
        ({"status": Status.DONE}, ["c0"]),
        ({"status": Status.FAILED}, ["c1"]),
        ({"status": Status.RUNNING}, []),
        ({"session": "one", "status": Status.PENDING}, ["c2", "c4"]),
        ({"name": "f0"}, ["c0", "c3"]),
        ({"name": "f0", "session": "two", "status": Status.PENDING}, ["c3"]),
    ],
    ids=str,
)
async def test_calls_are_listed_by_session_status_and_name(
    store: Store, filters: dict[str, Any], ids: list[str]
) -> None:
    for number in range(6):
        session = ("one", "two")[number % 2]
        call = a_call(f"c{number}", f"t{number}", session, name=f"f{number % 3}")
        await store.save_turn(a_turn(f"t{number}", session, call), [call])
    await store.answer("one", "c0", result=1)
    await store.answer("two", "c1", error="no")
    assert [call.call_id for call in (await store.calls(**filters)).items] == ids
    paged: list[str] = []
    cursor = None
    while True:
        page = await store.calls(**filters, limit=1, cursor=cursor)
        paged += [call.call_id for call in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert paged == ids


@pytest.mark.parametrize(
    "filters",
    [{}, {"session": "one"}, {"status": Status.DONE}, {"status": Status.FAILED}, {"name": "f0"}, {"session": "none"}],
    ids=str,
)
async def test_the_newest_calls_first_are_the_others_reversed(store: Store, filters: dict[str, Any]) -> None:
    for number in range(7):
        session = ("one", "two")[number % 2]
        call = a_call(f"c{number}", f"t{number}", session, name=f"f{number % 3}")
        await store.save_turn(a_turn(f"t{number}", session, call), [call])
        answer = {"error": "no"} if number % 3 else {"result": 1}
        await store.answer(session, f"c{number}", **answer)
    oldest = [call.call_id for call in (await store.calls(**filters)).items]
    for _ in range(2):  # pages may be kept
        assert [call.call_id for call in (await store.calls(**filters, newest_first=True)).items] == oldest[::-1]
        paged: list[str] = []
        cursor = None
        while True:
            page = await store.calls(**filters, newest_first=True, limit=2, cursor=cursor)
            paged += [call.call_id for call in page.items]
            if (cursor := page.next_cursor) is None:
                break
        assert paged == oldest[::-1]


@pytest.mark.parametrize("count", [0, 1, 2, 9])
async def test_a_moment_divides_the_calls(store: Store, clock: Clock, count: int) -> None:
    began = clock.now
    for number in range(count):
        clock.now = began + number
        await save(store, f"t{number}", ("one", "two")[number % 3 == 1], created_at=clock())
    for session in (None, "one", "two"):
        known = (await store.calls(session=session)).items
        for moment in (began - 1, began, began + 0.5, began + 1, began + 4, began + 8, began + 9):
            later = await store.calls(session=session, cursor=await store.calls_cursor(moment, session=session))
            assert later.items == [call for call in known if call.created_at >= moment]
            cursor = await store.calls_cursor(moment, session=session, newest_first=True)
            earlier = await store.calls(session=session, newest_first=True, cursor=cursor)
            assert earlier.items == [call for call in known if call.created_at < moment][::-1]


async def test_what_is_asked_for_over_and_over_shows_each_change(store: Store, clock: Clock) -> None:
    """Clients poll the same lists and calls, which a backend may keep."""
    saved: set[str] = set()

    async def check(*ids: str) -> None:
        saved.update(ids)
        for deleted in saved.difference(ids):
            with pytest.raises(UnknownCall):
                await store.find_call(deleted)
        calls = [await store.find_call(call_id) for call_id in ids]
        for _ in range(2):
            assert (await store.calls()).items == calls
            assert (await store.calls(session="one")).items == [call for call in calls if call.session == "one"]
            pending = [call for call in calls if call.status is Status.PENDING]
            assert (await store.calls(status=Status.PENDING, limit=2)).items == pending[:2]

    await check()
    for number in range(4):
        await save(store, f"t{number}", call=WORKERS, created_at=clock())
        await check(*(f"c-t{before}" for before in range(number + 1)))
    ids = [f"c-t{number}" for number in range(4)]
    await store.answer("one", "c-t0", result=1)
    await check(*ids)
    assert (await store.find_call("c-t0")).result == 1
    await store.claim("one", ["get_weather"], lease=5, worker="w")
    await check(*ids)
    await store.renew("one", "c-t1", "w", 50)  # without an event
    await check(*ids)
    await store.start("one", "c-t2", loop_id="l")
    await check(*ids)
    await store.settle("one", "c-t3", Status.EXPIRED, error="late")
    await check(*ids)
    await save(store, "other", "two", call={"proxy_id": "gone"}, created_at=clock())
    await check(*ids, "c-other")
    await store.settle_lost()
    await check(*ids, "c-other")
    await store.delete_session("two")
    await check(*ids)
    clock.now += TTL + 1
    await store.expire()
    await check()


async def test_pages_of_calls_hold_still_while_calls_are_added_and_answered(store: Store) -> None:
    for number in range(3):
        await save(store, f"t{number}")
    first = await store.calls(limit=2)
    await save(store, "t3")
    await store.answer("one", "c-t0", result=1)
    second = await store.calls(limit=2, cursor=first.next_cursor)
    assert [call.call_id for call in second.items] == ["c-t2", "c-t3"]
    assert second.next_cursor is None


@pytest.mark.parametrize("cursor", ["", "x", "-1", "call", "turn", "call-1", "call²", "callx1", "call" + "9" * 40])
async def test_a_cursor_that_the_store_did_not_make_is_refused(store: Store, cursor: str) -> None:
    for attempt in (
        store.calls(cursor=cursor),
        store.turns("one", cursor=cursor),
        store.sessions(cursor=cursor),
    ):
        with pytest.raises(BadCursor):
            await attempt


async def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    for number in range(2):
        await save(store, f"t{number}")
    cursor = (await store.turns("one", limit=1)).next_cursor
    with pytest.raises(BadCursor):
        await store.calls(cursor=cursor)


async def test_a_limit_below_one_is_refused(store: Store) -> None:
    for attempt in (
        store.sessions(limit=0),
        store.turns("one", limit=0),
        store.calls(limit=-1),
        store.events(after=None, limit=0),
    ):
        with pytest.raises(ValueError, match="limit"):
            await attempt


async def test_an_unknown_call_is_unknown(store: Store) -> None:
    with pytest.raises(UnknownCall, match="c1"):
        await store.call("one", "c1")
    with pytest.raises(UnknownCall, match="c1"):
        await store.answer("one", "c1", result=1)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"result": {"temp": 3}}, Status.DONE),
        ({"result": None}, Status.DONE),
        ({}, Status.DONE),
        ({"result": False}, Status.DONE),
        ({"result": [2**80, 1.5, "é"]}, Status.DONE),
        ({"error": "no such city"}, Status.FAILED),
        ({"error": ""}, Status.FAILED),
    ],
    ids=str,
)
async def test_an_answer_ends_the_call_and_the_same_again_changes_nothing(
    store: Store, clock: Clock, answer: dict[str, Any], status: Status
) -> None:
    call = await save(store, "t1")
    clock.now += 5
    answered, changed = await store.answer("one", "c-t1", **answer)
    assert changed is True
    assert answered == call.model_copy(
        update={"result": None, "error": None, **answer, "status": status, "updated_at": clock.now}
    )
    assert await store.call("one", "c-t1") == answered
    assert (await store.look_up("one", turn_ids=["t1"])).calls == {"c-t1": answered}
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("call.updated", answered.model_dump(mode="json"))
    clock.now += 5
    assert await store.answer("one", "c-t1", **answer) == (answered, False)
    assert await store.last_event_id() == event.event_id
    with pytest.raises(AlreadyAnswered) as refused:
        await store.answer("one", "c-t1", result="another")
    assert refused.value.call == answered
    assert await store.call("one", "c-t1") == answered


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1, 1.0, True),
        (2**80, 2**80, True),
        (2**80, 2**80 + 1, False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        (True, 1, False),
        ([0], [False], False),
        ({"a": True}, {"a": 1.0}, False),
        (None, {}, False),
        (None, False, False),
        ("1", 1, False),
        ([], {}, False),
        ("é", "é", True),
        ((1, 2), [1, 2], True),
    ],
)
async def test_answers_are_compared_as_json_values(store: Store, first: Any, second: Any, same: bool) -> None:
    await save(store, "t1")
    await store.answer("one", "c-t1", result=first)
    if same:
        assert (await store.answer("one", "c-t1", result=second))[1] is False
    else:
        with pytest.raises(AlreadyAnswered):
            await store.answer("one", "c-t1", result=second)


async def test_a_result_and_an_error_of_the_same_words_are_two_answers(store: Store) -> None:
    await save(store, "t1")
    await store.answer("one", "c-t1", error="no")
    with pytest.raises(AlreadyAnswered):
        await store.answer("one", "c-t1", error="no, really")
    with pytest.raises(AlreadyAnswered):
        await store.answer("one", "c-t1", result=None)
    assert (await store.answer("one", "c-t1", error="no"))[1] is False


@pytest.mark.parametrize(
    "result",
    [float("nan"), {"a": float("inf")}, "\ud800", object()],
    ids=["not a number", "infinity", "half a surrogate pair", "an object"],
)
async def test_a_result_that_is_not_json_is_refused_and_the_call_stays_pending(store: Store, result: Any) -> None:
    call = await save(store, "t1")
    with pytest.raises(ValueError):  # noqa: PT011 (the words are the encoder's)
        await store.answer("one", "c-t1", result=result)
    assert await store.call("one", "c-t1") == call


async def test_a_call_cannot_be_answered_through_another_session(store: Store) -> None:
    call = await save(store, "t1", "one")
    with pytest.raises(UnknownCall):
        await store.answer("two", "c-t1", result=1)
    assert await store.call("one", "c-t1") == call
    assert (await store.answer("one", "c-t1", result=1))[1] is True


async def test_one_of_two_concurrent_answers_wins(store: Store) -> None:
    await save(store, "t1")
    outcomes = await asyncio.gather(
        *(store.answer("one", "c-t1", result=number) for number in range(3)), return_exceptions=True
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, AlreadyAnswered) for outcome in outcomes) == 2
