"""The store's contract about a front door's answers that are not handed over yet, over every backend."""

import asyncio
from pathlib import Path

import pytest

from store.base import Store
from store.factory import open_url
from store.models import Document, UndeliveredAnswer
from tests.store.conftest import SCHEMES, TTL, URLS, Clock
from tests.store.response_records import a_response

KEY = b"the request"
HOUR = 3600.0


async def answered(
    store: Store, response_id: str = "r1", *, key: bytes = KEY, proxy: str = "p1", answer: Document | None = None
) -> None:
    """An answer of a proxy that is alive."""
    await store.hold(proxy, 60.0)
    undelivered = UndeliveredAnswer(key, proxy, {"id": response_id} if answer is None else answer)
    await store.add_response(a_response(response_id), undelivered=undelivered)


async def try_take(
    store: Store, *, session: str = "one", key: bytes = KEY, proxy: str = "p2", window: float = 60.0
) -> str | None:
    await store.hold(proxy, 60.0)
    found = await store.take_answer(session, key, window=window, proxy_id=proxy)
    return found[0] if found else None


async def test_an_answer_that_was_not_handed_over_is_taken_as_it_was_kept(store: Store) -> None:
    answer: Document = {"n": 2**80, "text": "é😀\x00", "none": None}
    await answered(store, answer=answer)
    kept = dict(answer)
    answer["later"] = True
    await store.mark_not_handed_over("one", "r1")
    assert await store.take_answer("one", KEY, window=60.0, proxy_id="p1") == ("r1", kept)


async def test_an_answer_can_be_the_document_of_its_response(store: Store) -> None:
    await store.hold("p1", 60.0)
    await store.add_response(a_response("r1"), undelivered=UndeliveredAnswer(KEY, "p1", None))
    for _ in range(2):
        await store.mark_not_handed_over("one", "r1")
        assert await store.take_answer("one", KEY, window=60.0, proxy_id="p1") == ("r1", None)
    await store.mark_handed_over("one", "r1")
    assert await try_take(store) is None


async def test_an_answer_is_taken_once_and_again_once_it_has_broken_off_again(store: Store) -> None:
    await answered(store)
    for _ in range(3):
        await store.mark_not_handed_over("one", "r1")
        assert [await try_take(store), await try_take(store)] == ["r1", None]


async def test_one_of_two_concurrent_callers_takes_the_answer(store: Store) -> None:
    await answered(store)
    await store.mark_not_handed_over("one", "r1")
    found = await asyncio.gather(*(try_take(store, proxy=f"p{number}") for number in range(4)))
    assert sorted(found, key=str) == [None, None, None, "r1"]


async def test_an_answer_on_its_way_is_not_taken(store: Store) -> None:
    await answered(store)
    assert await try_take(store) is None


async def test_an_answer_that_was_handed_over_is_never_taken(store: Store) -> None:
    await answered(store)
    await store.mark_not_handed_over("one", "r1")
    for _ in range(2):
        await store.mark_handed_over("one", "r1")
    await store.mark_not_handed_over("one", "r1")
    assert await try_take(store) is None
    assert (await store.response("one", "r1")).document == {"id": "r1"}


async def test_an_answer_is_given_to_its_own_request_alone(store: Store) -> None:
    await answered(store)
    await store.add_response(a_response("r2"))
    for session, response_id in (("one", "r1"), ("one", "r2"), ("two", "r1"), ("one", "none")):
        await store.mark_not_handed_over(session, response_id)
    assert await try_take(store, key=b"another") is None
    assert await try_take(store, session="two") is None
    assert await try_take(store) == "r1"


async def test_the_newest_answer_is_taken_first(store: Store) -> None:
    for number in range(3):
        await answered(store, f"r{number}")
        await store.mark_not_handed_over("one", f"r{number}")
    assert [await try_take(store) for _ in range(4)] == ["r2", "r1", "r0", None]


async def test_an_answer_is_taken_within_the_window_and_not_later(store: Store, clock: Clock) -> None:
    await answered(store)
    await store.mark_not_handed_over("one", "r1")
    clock.now += 5
    await store.mark_not_handed_over("one", "r1")
    clock.now += 55.1
    assert await try_take(store) is None
    clock.now -= 0.1
    assert await try_take(store) == "r1"


async def test_an_answer_of_a_proxy_that_is_gone_broke_off_when_it_was_last_alive(store: Store, clock: Clock) -> None:
    await answered(store)
    clock.now += 5
    await store.drop("p1")
    clock.now += 60.1
    assert await try_take(store) is None
    clock.now -= 0.1
    assert await try_take(store) == "r1"
    assert await try_take(store) is None, "p2 is alive"
    await store.drop("p2")
    assert await try_take(store, proxy="p3") == "r1"


async def test_an_answer_goes_with_its_response_and_its_session(store: Store) -> None:
    for response_id, key in (("r1", b"1"), ("r2", b"2")):
        await answered(store, response_id, key=key)
        await store.mark_not_handed_over("one", response_id)
    await store.delete_response("one", "r1")
    assert await try_take(store, key=b"1") is None
    await store.delete_session("one")
    assert await try_take(store, key=b"2") is None


@pytest.mark.parametrize("ttl", [TTL, 10 * HOUR])
@pytest.mark.parametrize("kind", SCHEMES)
async def test_an_answer_is_kept_for_an_hour_at_most(kind: str, ttl: float, clock: Clock, tmp_path: Path) -> None:
    store = open_url(URLS[kind](tmp_path), ttl=ttl, clock=clock, uptime=clock)
    await store.open()
    for response_id in ("r1", "r2"):
        await answered(store, response_id)
        await store.mark_not_handed_over("one", response_id)
        clock.now += 2
    clock.now += min(ttl, HOUR) - 3
    await store.expire()
    assert await try_take(store, window=HOUR) == "r2"
    assert await try_take(store, window=HOUR) is None
    await store.close()
