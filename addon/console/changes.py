"""Tells pages what kinds of records have changed, once a second at most; they fetch what they show."""

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import Annotated

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.console.rendering import HEADERS
from addon.control.request_events import RequestEvents
from addon.control.routes.servers import Server, servers
from addon.control.waiting import waiting_calls
from addon.core.framing.documents import Document
from addon.web.access import OWNER, needs
from addon.web.describe import Group
from addon.web.disconnect import DisconnectWatcher
from addon.web.problems import Problem
from addon.web.routing import ApiContext, ApiDep, Query
from addon.web.waits import Waits
from store.base import Store, StoreError
from store.models import Event

router = Group("console")

_PAUSE = 1.0
"""Seconds in which changes are gathered: a page that is fetched for each of them would cost more than it tells."""
_PAUSE_WHEN_BUSY = 2.0
"""The same once there were as many as are looked at: each page that is fetched takes from what the proxy serves."""
_PAUSE_FOR_TOOLS = 2.0
"""Seconds between two looks at the tools of the proxy."""
_MOST = 64
"""Events that are looked at each time."""
_KEEP_ALIVE = 15.0
_FOLLOWED = {
    "live": "requests",
    "connect": "requests",
    "request": "requests",
    "sessions": "requests",
    "tools": "tools",
}
"""What pages are told of that is not in the store: requests, and the tools of the proxy's files and MCP servers."""


class _Page(BaseModel):
    """`page`: the one that follows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page: str = ""


@router.get("/console/changes", include_in_schema=False)
@needs("read", "approve")
async def changes(api: ApiDep, query: Annotated[_Page, Query()]) -> Response:
    return _Changes(api, _FOLLOWED.get(query.page))


class _Happened(IntEnum):
    """What a wait has brought. `END`: the store was closed."""

    END = 0
    NOTHING = 1
    STORED = 2
    OTHER = 3


class _Changes(Response):
    """Server-Sent Events without data worth reading: `calls`, `approvals`, `turns`, `sessions`, and the `other`."""

    def __init__(self, api: ApiContext, other: str | None = None) -> None:
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._kinds = _KINDS if other is None else (*_KINDS, other)
        self._other = _SOURCES[other](api) if other is not None else None
        self._after = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        store, other = self._api.store, self._other
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if other is not None:
            await other.start()
        # A page that was away, or whose proxy is another now, fetches everything.
        await write(b"".join(map(_message, self._kinds)))
        async with DisconnectWatcher(receive, *self._api.ends(scope.get("access", OWNER))) as watcher:
            try:
                self._after = await store.last_event_id()
                waiting, pause = await _waiting(store), _PAUSE
                sources = [self._stored] if other is None else [self._stored, partial(_changed_of, other)]
                async with Waits(*sources) as waits:
                    while happened := await watcher.wait(waits.next()):
                        if happened is _Happened.NOTHING:
                            await write(b": keep-alive\n\n")
                        else:
                            if await watcher.wait(asyncio.sleep(pause, result=True)) is None:
                                break
                            after, self._after = self._after, await store.last_event_id()
                            events = await store.events(after=after, limit=_MOST)
                            kinds, waiting = await _changed(store, events, waiting)
                            pause = _PAUSE if len(events) < _MOST else _PAUSE_WHEN_BUSY
                            if happened is _Happened.OTHER or isinstance(other, RequestEvents):
                                kinds.append(self._kinds[-1])
                            await write(b"".join(map(_message, kinds)))
                        if self._api.has_ended(scope):
                            break
            except (StoreError, OSError):
                pass  # the page connects anew, and is told then
        await write(b"", more=False)

    async def _stored(self) -> _Happened:
        now = asyncio.get_running_loop().time
        since = now()
        if await self._api.store.follow(None, self._after, _KEEP_ALIVE, limit=1):
            return _Happened.STORED
        return _Happened.END if now() - since < _KEEP_ALIVE / 2 else _Happened.NOTHING


async def _changed_of(other: "RequestEvents | _ProxyTools") -> _Happened:
    await other.change()
    return _Happened.OTHER


class _ProxyTools:
    """The tools of the proxy's files and MCP servers, and these servers' state. No event tells of changes."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._found: tuple[Sequence[Document], Sequence[Server]] = ((), ())

    async def start(self) -> None:
        self._found = await self._look()

    async def change(self) -> None:
        """Wait until they are others than before."""
        before = self._found
        while True:
            self._found = await self._look()
            if self._found != before:
                return
            await asyncio.sleep(_PAUSE_FOR_TOOLS)

    async def _look(self) -> tuple[Sequence[Document], Sequence[Server]]:
        try:
            listed = await servers(self._api)
        except Problem:  # the supervisor does not answer, and the page says so
            listed = ()
        return list(self._api.shared()), listed


_SOURCES: dict[str, type[RequestEvents | _ProxyTools]] = {"requests": RequestEvents, "tools": _ProxyTools}
_KINDS = ("calls", "approvals", "turns", "sessions")


async def _changed(store: Store, events: Sequence[Event], waiting: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """What these events have changed, the first `_MOST` since the page was told, and the calls that wait for an
    approval now. `waiting`: those that did then: a call may stop waiting because somebody decides elsewhere, or because
    nobody does in time."""
    families = {event.type.partition(".")[0] for event in events}
    found = set()
    if families & {"call", "turn"}:
        found |= {"calls", "turns"}
    if families - {"call", "turn"}:
        found.add("sessions")
    if len(events) == _MOST:  # to read them all would cost more than to fetch what is there now
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


def _message(kind: str) -> bytes:
    return b"event: %s\ndata: {}\n\n" % kind.encode()
