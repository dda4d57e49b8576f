"""How a page is filled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from addon.control.paging import PAGE_BYTES, PageQuery, render_page
from store.base import Store
from store.models import Call, Page

Capture = Callable[..., Awaitable[Call]]


@pytest.mark.parametrize("limit", [1, 2, 5, 16, 40, 41, 1000])
async def test_a_page_of_small_items_is_as_long_as_asked_for(
    client: httpx2.AsyncClient, capture: Capture, limit: int
) -> None:
    made = [(await capture(f"call_{n}")).call_id for n in range(41)]
    page = (await client.get("/v1/calls", params={"limit": limit})).json()
    assert [call["call_id"] for call in page["items"]] == made[:limit]
    assert (page["next_cursor"] is None) is (limit >= 41)


async def test_a_page_of_large_items_ends_early_and_the_next_one_goes_on(
    client: httpx2.AsyncClient, store: Store, capture: Capture
) -> None:
    made = [(await capture(f"call_{n}")).call_id for n in range(9)]
    for call_id in made:
        await store.answer("default", call_id, result="x" * (PAGE_BYTES // 3))
    ids, pages, cursor = [], 0, None
    while pages == 0 or cursor:
        page = (await client.get("/v1/calls", params={"cursor": cursor} if cursor else {})).json()
        ids += [call["call_id"] for call in page["items"]]
        pages, cursor = pages + 1, page["next_cursor"]
        assert len(page["items"]) < 9
    assert ids == made


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (100, [0, 1, 17]),
        (10_000, [0, 1, 7, 13, 19]),
        (100_000, [turn for at in range(20) for turn in (at, -1)][:-1]),
    ],
)
async def test_others_have_their_turn_while_a_page_is_put_together(size: int, expected: list[int]) -> None:
    turns: list[int] = []

    async def fetch(*, limit: int, cursor: str | None) -> Page[Any]:
        at = int(cursor or 0)
        turns.append(at)
        asyncio.get_running_loop().call_soon(turns.append, -1)
        return Page(items=["x" * size] * limit, next_cursor=str(at + limit))

    page = await render_page(fetch, PageQuery(limit=20, cursor=None))
    assert len(page.items) == 20
    assert turns == expected
