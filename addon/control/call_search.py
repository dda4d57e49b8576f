"""Finds calls: those that wait for an approval, and searches by text and time.

Since the control API shares the proxy's event loop, a page of a search looks at a limited number of calls, and has a
cursor for the next page."""

import asyncio
import datetime
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic_core
from pydantic import BeforeValidator, Field

from addon.control.paging import PAGE_BYTES, PageQuery, RenderedPage, render_page
from store.base import Store
from store.models import Call, Page, Status


def parse_moment(value: object) -> object:
    """The Unix time of an RFC 3339 text (UTC if it has no zone) or of a number. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a time such as 2026-11-24T09:30:00Z, or a Unix time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


Moment = Annotated[float, BeforeValidator(parse_moment), Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Seconds since 1970, at most to the year 9999."""


_MOST_PENDING = 10_000
"""The most pending calls that are read to find those that wait for an approval."""
_PENDING_PORTION = 16
"""The number of calls that are read before other tasks run: calls may be large."""


async def waiting_calls(store: Store, session: str | None = None, *, name: str | None = None) -> AsyncIterator[Call]:
    """Oldest first. `name`: only calls of this tool."""
    cursor, looked_at = None, 0
    while looked_at < _MOST_PENDING:
        found = await store.calls(
            session=session, status=Status.PENDING, name=name, limit=_PENDING_PORTION, cursor=cursor
        )
        for call in found.items:
            if call.approval == "waiting":
                yield call
        looked_at, cursor = looked_at + len(found.items), found.next_cursor
        if cursor is None:
            return
        await asyncio.sleep(0)


MOST_LOOKED_AT = 500
"""The most calls that one page of a search looks at."""
LONGEST = 100_000
"""The number of characters of a call's arguments and result that are searched."""
_PORTION = 64
"""The number of calls that are read before other tasks run."""


@dataclass(frozen=True, slots=True)
class CallSearch:
    """`text`: part of the name, id, arguments, result or error, in upper or lower case; "": any. `since`, `until`: Unix
    times, without `until` itself."""

    session: str | None = None
    status: Status | None = None
    name: str | None = None
    text: str = ""
    since: float | None = None
    until: float | None = None
    newest_first: bool = False

    async def page(self, store: Store, query: PageQuery) -> RenderedPage:
        """A page of the calls that were found. Even a page with few or no calls can have a cursor. Raises BadCursor."""
        if not (self.text or self.since is not None or self.until is not None or self._has_no_index(store)):
            return await render_page(lambda *, limit, cursor: self._fetch(store, limit, cursor), query)
        needles = _needles(self.text)
        items: list[bytes] = []
        looked_at, size, cursor = 0, 0, query.cursor or await self._first(store)
        while True:
            found = await self._fetch(store, _PORTION, cursor)
            for number, call in enumerate(found.items, 1):
                if self._is_past(call):
                    return RenderedPage(items, None)
                if not self._fits(call) or not _matches(call, needles):
                    continue
                items.append(pydantic_core.to_json(call))
                size += len(items[-1])
                if len(items) >= query.limit or size >= PAGE_BYTES:
                    return RenderedPage(items, (await self._fetch(store, number, cursor)).next_cursor)
            looked_at, cursor = looked_at + len(found.items), found.next_cursor
            if cursor is None or looked_at >= MOST_LOOKED_AT:
                return RenderedPage(items, cursor)
            await asyncio.sleep(0)

    def _has_no_index(self, store: Store) -> bool:
        """Whether the store would have to look at an unlimited number of calls."""
        is_open = self.status is not None and not self.status.final
        return not store.indexes_calls and not is_open and (self.status is not None or self.name is not None)

    def _fetch(self, store: Store, limit: int, cursor: str | None) -> Awaitable[Page[Call]]:
        is_searched = self._has_no_index(store)
        return store.calls(
            session=self.session,
            status=None if is_searched else self.status,
            name=None if is_searched else self.name,
            newest_first=self.newest_first,
            limit=limit,
            cursor=cursor,
        )

    def _fits(self, call: Call) -> bool:
        return self.status in (None, call.status) and self.name in (None, call.name)

    async def _first(self, store: Store) -> str | None:
        """The cursor of the page with the first call in the time range."""
        moment = self.until if self.newest_first else self.since
        if moment is None:
            return None
        return await store.calls_cursor(moment, session=self.session, newest_first=self.newest_first)

    def _is_past(self, call: Call) -> bool:
        """Whether this call and all after it are outside of the time range."""
        if self.newest_first:
            return self.since is not None and call.created_at < self.since
        return self.until is not None and call.created_at >= self.until


def _needles(text: str) -> Sequence[str]:
    """The text, and its form in JSON."""
    return [one.lower() for one in dict.fromkeys((text, json.dumps(text, ensure_ascii=False)[1:-1]))] if text else []


def _matches(call: Call, needles: Sequence[str]) -> bool:
    if not needles:
        return True
    plain = f"{call.name}\n{call.call_id}\n{call.error or ''}".lower()
    if needles[0] in plain:
        return True
    searched = pydantic_core.to_json((call.args, call.result)).decode()[:LONGEST].lower()
    return any(needle in searched for needle in needles)
