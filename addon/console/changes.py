"""Tells pages which kinds of records have changed, at most once a second; the pages then fetch their contents."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from addon.console.rendering import HEADERS
from addon.control.call_search import waiting_calls
from addon.control.routes.events import RequestEvents
from addon.core.framing.documents import Document
from addon.tools.base import ServerState
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, routes_of
from addon.web.event_streams import KEEP_ALIVE, event_stream, sse
from store.base import Store
from store.models import Event

router = routes_of("console")

_PAUSE = 1.0
"""Seconds in which changes are collected, so that a page is not fetched for each of them."""
_PAUSE_WHEN_BUSY = 2.0
"""The same after `_MOST` events: fetched pages take time from the proxy."""
_PAUSE_FOR_TOOLS = 2.0
"""Seconds between two looks at the proxy's tools."""
_MOST = 64
"""The most events that are read each time."""
_FOLLOWED = {
    "live": "requests",
    "connect": "requests",
    "request": "requests",
    "sessions": "requests",
    "tools": "tools",
}
"""By page, the changes that it follows outside of the store: requests, or the proxy's tools and MCP servers."""


class _Page(BaseModel):
    """`page`: the page that follows the changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page: str = ""


@router.get("/console/changes", include_in_schema=False)
@needs("read", "approve")
async def changes(api: ApiDep, request: Request, query: Annotated[_Page, Query()]) -> Response:
    """Server-Sent Events without data worth reading: `calls`, `approvals`, `turns`, `sessions`, and what else the page
    follows."""
    kind = _FOLLOWED.get(query.page)
    if kind is None:
        return event_stream(api, request, _stored(api.store, _KINDS), headers=HEADERS)
    other = _SOURCES[kind](api)
    other.start()
    return event_stream(api, request, _stored(api.store, (*_KINDS, kind)), _others(other, kind), headers=HEADERS)


async def _stored(store: Store, kinds: Sequence[str]) -> AsyncGenerator[ServerSentEvent]:
    """Changes in the store, until it is closed. `kinds`: sent first, because a page that reconnects, perhaps to another
    proxy, must fetch everything."""
    for kind in kinds:
        yield _message(kind)
    now = asyncio.get_running_loop().time
    after, waiting, pause = await store.last_event_id(), await _waiting(store), _PAUSE
    while True:
        since = now()
        if not await store.follow(None, after, KEEP_ALIVE, limit=1):
            if now() - since < KEEP_ALIVE / 2:
                return
            continue
        await asyncio.sleep(pause)
        before, after = after, await store.last_event_id()
        events = await store.events(after=before, limit=_MOST)
        found, waiting = await _changed(store, events, waiting)
        pause = _PAUSE if len(events) < _MOST else _PAUSE_WHEN_BUSY
        for kind in found:
            yield _message(kind)


async def _others(other: "RequestEvents | _ProxyTools", kind: str) -> AsyncGenerator[ServerSentEvent]:
    while True:
        await other.change()
        await asyncio.sleep(_PAUSE)
        yield _message(kind)


class _ProxyTools:
    """The tools of the proxy's files and MCP servers, and these servers' states. Polled, because they have no
    events."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._found: tuple[Sequence[Document], Sequence[ServerState]] = ((), ())

    def start(self) -> None:
        self._found = self._look()

    async def change(self) -> None:
        before = self._found
        while True:
            self._found = self._look()
            if self._found != before:
                return
            await asyncio.sleep(_PAUSE_FOR_TOOLS)

    def _look(self) -> tuple[Sequence[Document], Sequence[ServerState]]:
        return list(self._api.shared()), list(self._api.server_states())


_SOURCES: dict[str, type[RequestEvents | _ProxyTools]] = {"requests": RequestEvents, "tools": _ProxyTools}
_KINDS = ("calls", "approvals", "turns", "sessions")


async def _changed(store: Store, events: Sequence[Event], waiting: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """The kinds that the first `_MOST` events since the last look have changed, and the calls that now wait for an
    approval. `waiting`: those that waited at the last look; some may have been decided or have expired since."""
    families = {event.type.partition(".")[0] for event in events}
    found = set()
    if families & {"call", "turn"}:
        found |= {"calls", "turns"}
    if families - {"call", "turn"}:
        found.add("sessions")
    if len(events) == _MOST:  # reading all events would cost more than fetching the pages
        found |= {"calls", "turns", "sessions"}
    if len(events) == _MOST or any(_may_wait(event, waiting) for event in events):
        before, waiting = waiting, await _waiting(store)
        if before != waiting:
            found.add("approvals")
    return [kind for kind in _KINDS if kind in found], waiting


def _may_wait(event: Event, waiting: frozenset[str]) -> bool:
    return event.type.startswith("call.") and (
        event.data.get("approval") == "waiting" or event.data["call_id"] in waiting
    )


async def _waiting(store: Store) -> frozenset[str]:
    return frozenset([call.call_id async for call in waiting_calls(store)])


def _message(kind: str) -> ServerSentEvent:
    return sse(event=kind, data="{}")
