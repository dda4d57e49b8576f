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
from addon.control.waiting import waiting_calls
from addon.web.access import OWNER, needs
from addon.web.describe import Group
from addon.web.disconnect import DisconnectWatcher
from addon.web.routing import ApiContext, ApiDep, Query
from addon.web.waits import Waits
from store.base import Store, StoreError
from store.models import Event

router = Group("console")

_PAUSE = 1.0
"""Seconds in which changes are gathered: a page that is fetched for each of them would cost more than it tells."""
_PAUSE_WHEN_BUSY = 2.0
"""The same once there were as many as are looked at: each page that is fetched takes from what the proxy serves."""
_MOST = 64
"""Events that are looked at each time."""
_KEEP_ALIVE = 15.0
_OF_REQUESTS = ("live", "connect", "request")
"""The pages that show requests."""


class _Page(BaseModel):
    """`page`: the one that follows; only some are told of requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page: str = ""


@router.get("/console/changes", include_in_schema=False)
@needs("read", "approve")
async def changes(api: ApiDep, query: Annotated[_Page, Query()]) -> Response:
    return _Changes(api, with_requests=query.page in _OF_REQUESTS)


class _Happened(IntEnum):
    """What a wait has brought. `END`: the store was closed."""

    END = 0
    NOTHING = 1
    SOMETHING = 2


class _Changes(Response):
    """Server-Sent Events without data worth reading: `calls`, `approvals`, `turns`, `sessions`; `requests`
    `with_requests`."""

    def __init__(self, api: ApiContext, *, with_requests: bool = False) -> None:
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._requests = RequestEvents(api) if with_requests else None
        self._after = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        store, requests = self._api.store, self._requests
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if requests is not None:
            await requests.start()
        # A page that was away, or whose proxy is another now, fetches everything.
        await write(b"".join(map(_message, _KINDS if requests is None else [*_KINDS, "requests"])))
        async with DisconnectWatcher(receive, *self._api.ends(scope.get("access", OWNER))) as watcher:
            try:
                self._after = await store.last_event_id()
                waiting, pause = await _waiting(store), _PAUSE
                sources = [self._stored] if requests is None else [self._stored, partial(_request, requests)]
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
                            if requests is not None:
                                kinds.append("requests")
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
            return _Happened.SOMETHING
        return _Happened.END if now() - since < _KEEP_ALIVE / 2 else _Happened.NOTHING


async def _request(requests: RequestEvents) -> _Happened:
    await requests.change()
    return _Happened.SOMETHING


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
