"""Pages of lists: the query parameters that all lists share, and the rendering of a page.

The control API shares the proxy's event loop. So a page is fetched in portions, other tasks run in between, and a page
with large items ends early.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from store.models import Page

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends at this size, even if it has few items."""

_PORTION = 16
_TURN_BYTES = 64 * 1024


class PageQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(100, ge=1, le=1000, description="At most this many items; fewer if they are large.")
    cursor: str | None = Field(None, description="`next_cursor` of the previous page.")


class Fetch[T](Protocol):
    def __call__(self, *, limit: int, cursor: str | None) -> Awaitable[Page[T]]: ...


@dataclass(frozen=True, slots=True)
class RenderedPage:
    items: list[bytes]
    next_cursor: str | None

    def response(self) -> Response:
        cursor = pydantic_core.to_json(self.next_cursor)
        return Response(
            b'{"items":[%b],"next_cursor":%b}' % (b",".join(self.items), cursor), media_type="application/json"
        )


async def render_page[T](fetch: Fetch[T], query: PageQuery, show: Callable[[T], Any] | None = None) -> RenderedPage:
    """The page for a query. `show`: converts an item for display. Raises what `fetch` raises."""
    items: list[bytes] = []
    size, cursor, portion = 0, query.cursor, 1
    while True:
        page = await fetch(limit=min(portion, query.limit - len(items)), cursor=cursor)
        rendered = page.json_items if show is None else [pydantic_core.to_json(show(item)) for item in page.items]
        items += rendered
        grown = sum(map(len, rendered))
        size += grown
        cursor = page.next_cursor
        if cursor is None or len(items) >= query.limit or size >= PAGE_BYTES:
            return RenderedPage(items, cursor)
        portion = max(1, min(_PORTION, _TURN_BYTES * len(rendered) // max(1, grown)))
        if grown >= _TURN_BYTES:
            await asyncio.sleep(0)
