"""The search of calls: what it finds, its order and its bounds."""

import json
import random
from typing import Any

import httpx2
import pytest

from addon.control import call_search
from addon.control.call_search import CallSearch
from addon.control.paging import PageQuery
from store.base import Store
from store.models import Call
from tests.control.conftest import Capture

BEGAN = 1_800_000_000.0


async def fill(capture: Capture, store: Store, count: int = 20) -> list[Call]:
    for number in range(count):
        await capture(
            f"call_{number:03}",
            session=("one", "two")[number % 2],
            name=("get_weather", "lookup")[number % 3 == 0],
            args={"city": ("Oslo", "Bergen", 'a "quoted"\nÄlesund')[number % 3]},
            created_at=BEGAN + number,
        )
        if number % 4 == 0:
            await store.answer(("one", "two")[number % 2], f"call_{number:03}", result={"celsius": number})
        elif number % 4 == 1:
            await store.answer(("one", "two")[number % 2], f"call_{number:03}", error=f"It FAILED: {number}")
    return (await store.calls()).items


async def listed(store: Store, search: CallSearch, limit: int = 1000) -> list[str]:
    """The ids over all pages."""
    found: list[str] = []
    cursor = None
    while True:
        page = await search.page(store, PageQuery(limit=limit, cursor=cursor))
        assert len(page.items) <= limit
        found += [json.loads(item)["call_id"] for item in page.items]
        if (cursor := page.next_cursor) is None:
            return found


def expected(calls: list[Call], search: CallSearch) -> list[str]:
    needle = search.text.lower()
    found = []
    for call in reversed(calls) if search.newest_first else calls:
        texts = [call.name, call.call_id, call.error or "", json.dumps(call.args), json.dumps(call.result)]
        texts += [str(value) for value in call.args.values()]
        if (
            search.session in (None, call.session)
            and search.name in (None, call.name)
            and search.status in (None, call.status)
            and (search.since is None or call.created_at >= search.since)
            and (search.until is None or call.created_at < search.until)
            and any(needle in text.lower() for text in texts)
        ):
            found.append(call.call_id)
    return found


@pytest.mark.parametrize("indexes_calls", [True, False])
@pytest.mark.parametrize("seed", range(6))
async def test_a_search_finds_what_fits_and_nothing_else(
    store: Store, capture: Capture, monkeypatch: pytest.MonkeyPatch, seed: int, indexes_calls: bool
) -> None:
    monkeypatch.setattr(store, "indexes_calls", indexes_calls)
    draw = random.Random(seed)
    calls = await fill(capture, store)
    for _ in range(40):
        monkeypatch.setattr(call_search, "_PORTION", draw.randrange(1, 9))
        monkeypatch.setattr(call_search, "MOST_LOOKED_AT", draw.randrange(1, 30))
        since, until = sorted(BEGAN + draw.randrange(-2, 23) / 2 * 2 for _ in range(2))
        search = CallSearch(
            session=draw.choice([None, "one", "none"]),
            status=draw.choice([None, None, calls[0].status]),
            name=draw.choice([None, "lookup"]),
            text=draw.choice(["", "oslo", "failed", 'a "Quoted"\nä', "CALL_01", "celsius", "nowhere"]),
            since=draw.choice([None, since]),
            until=draw.choice([None, until]),
            newest_first=draw.random() < 0.5,
        )
        assert await listed(store, search, draw.choice([1, 3, 1000])) == expected(calls, search), search


async def test_a_page_looks_at_a_bounded_number_of_calls(
    store: Store, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(capture, store)
    monkeypatch.setattr(call_search, "_PORTION", 5)
    monkeypatch.setattr(call_search, "MOST_LOOKED_AT", 10)
    page = await CallSearch(text="nowhere").page(store, PageQuery(limit=100, cursor=None))
    assert page.items == []
    assert page.next_cursor is not None
    page = await CallSearch(text="nowhere").page(store, PageQuery(limit=100, cursor=page.next_cursor))
    assert (page.items, page.next_cursor) == ([], None)


async def test_by_the_api(client: httpx2.AsyncClient, store: Store, capture: Capture) -> None:
    calls = await fill(capture, store)

    async def got(**query: str) -> list[str]:
        answer = await client.get("/v1/calls", params=query)
        assert answer.status_code == 200, answer.text
        return [one["call_id"] for one in answer.json()["items"]]

    assert await got(order="newest", limit="2") == ["call_019", "call_018"]
    assert await got(since="2027-01-15T08:00:18Z") == ["call_018", "call_019"]
    assert await got(until="2027-01-15T10:00:02+02:00", order="newest") == ["call_001", "call_000"]
    assert await got(text="bergen", session="one") == expected(calls, CallSearch(session="one", text="bergen"))
    for wrong in (
        {"since": "yesterday"},
        {"until": "nan"},
        {"order": "best"},
        {"text": "x" * 1001},
        {"since": "1e300"},
    ):
        answer = await client.get("/v1/calls", params=wrong)
        (field,) = wrong
        assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_call_that_is_waited_for_may_be_searched(client: httpx2.AsyncClient, capture: Capture) -> None:
    query: dict[str, Any] = {"text": "Bergen", "wait": "0"}
    assert (await client.get("/v1/calls", params=query)).json()["items"] == []
    await capture("call_1", args={"city": "Bergen"})
    assert len((await client.get("/v1/calls", params=query | {"wait": "5"})).json()["items"]) == 1
