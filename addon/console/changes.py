"""Tells pages what kinds of records have changed, a few times a second at most; they fetch what they show."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.console.rendering import HEADERS
from addon.control.waiting import waiting_calls
from addon.web import tasks
from addon.web.access import OWNER, needs
from addon.web.describe import Group
from addon.web.disconnect import DisconnectWatcher
from addon.web.routing import ApiContext, ApiDep, Query
from store.base import Store, StoreError
from store.models import Event

router = Group("console")

_PAUSE = 1.0
"""Seconds in which changes are gathered: a page that is fetched for each of them would cost more than it tells."""
_MOST = 64
"""Events that are looked at each time."""
_KEEP_ALIVE = 15.0


class _Page(BaseModel):
    """`page`: the one that follows; only the live page is told of requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page: str = ""


@router.get("/console/changes", include_in_schema=False)
@needs("read", "approve")
async def changes(api: ApiDep, query: Annotated[_Page, Query()]) -> Response:
    return _Changes(api, is_live=query.page == "live")


class _Changes(Response):
    """Server-Sent Events without data worth reading: `calls`, `approvals`, `turns`, `sessions`; `requests` if
    `is_live`."""

    def __init__(self, api: ApiContext, *, is_live: bool = False) -> None:
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._is_live = is_live
        self._version = -1  # of the requests that the page knows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        store = self._api.store
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # A page that was away, or whose proxy is another now, fetches everything.
        await write(b"".join(map(_message, [*_KINDS, *self._requests()])))
        now = asyncio.get_running_loop().time
        async with DisconnectWatcher(receive, *self._api.ends(scope.get("access", OWNER))) as watcher:
            try:
                after = await store.last_event_id()
                waiting = await _waiting(store)
                while not watcher.gone:
                    since, latest = now(), await store.last_event_id()
                    if await watcher.wait(self._change(after)):
                        if await watcher.wait(asyncio.sleep(_PAUSE, result=True)) is None:
                            break
                        latest = await store.last_event_id()
                        kinds, waiting = await _changed(store, after, waiting)
                        await write(b"".join(map(_message, [*kinds, *self._requests()])))
                    elif now() - since < _KEEP_ALIVE / 2:
                        break  # the page is gone, or the store was closed
                    else:
                        await write(b": keep-alive\n\n")
                    after = latest
                    if self._api.has_ended(scope):
                        break
            except (StoreError, OSError):
                pass  # the page connects anew, and is told then
        await write(b"", more=False)

    async def _change(self, after: str) -> bool:
        """Wait for a change. False: there is none for a time, or the store was closed."""
        follow = self._api.store.follow(None, after, _KEEP_ALIVE, limit=1)
        if not self._is_live:
            return bool(await follow)
        both = tasks.spawn(follow, name="events"), tasks.spawn(self._request(), name="requests")
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return both[1].done() or bool(both[0].result())
        finally:
            await tasks.cancel(*both)

    async def _request(self) -> None:
        """Wait until a request changes. What runs changes all the time, and other processes do not say when."""
        recent = self._api.recent
        if not (recent.running or recent.has_siblings):
            await recent.change(self._version)

    def _requests(self) -> list[str]:
        """`requests`, if some may have changed since the last time."""
        recent = self._api.recent
        changed = recent.version != self._version or recent.running or recent.has_siblings
        self._version = recent.version
        return ["requests"] if self._is_live and changed else []


_KINDS = ("calls", "approvals", "turns", "sessions")


async def _changed(store: Store, after: str, waiting: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """What has changed since an event, and the calls that wait for an approval now. `waiting`: those that did then: a
    call may stop waiting because somebody decides elsewhere, or because nobody does in time."""
    events = await store.events(after=after, limit=_MOST)
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
