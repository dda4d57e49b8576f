"""Tells pages what kinds of records have changed, a few times a second at most; they fetch what they show."""

import asyncio
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.console.rendering import HEADERS
from addon.console.waiting import waiting_calls
from addon.web.access import OWNER, needs
from addon.web.describe import Group
from addon.web.disconnect import DisconnectWatcher
from addon.web.routing import ApiContext, ApiDep
from store.base import StoreError
from store.models import Event

router = Group("console")

_PAUSE = 0.5
"""Seconds between two messages: a page that is fetched for each change would cost more than it tells."""
_BATCH = 256
_KEEP_ALIVE = 15.0


@router.get("/console/changes", include_in_schema=False)
@needs("read", "approve")
async def changes(api: ApiDep) -> Response:
    return _Changes(api)


class _Changes(Response):
    """Server-Sent Events without data worth reading: `calls`, `approvals`, `turns`, `sessions`."""

    def __init__(self, api: ApiContext) -> None:
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        store = self._api.store
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # A page that was away, or whose proxy is another now, fetches everything.
        await write(b"".join(map(_message, _KINDS)))
        now = asyncio.get_running_loop().time
        async with DisconnectWatcher(receive, *self._api.ends(scope.get("access", OWNER))) as watcher:
            try:
                after = await store.last_event_id()
                waiting = {call.call_id async for call in waiting_calls(store)}
                while not watcher.gone:
                    since, latest = now(), await store.last_event_id()
                    found = await watcher.wait(store.follow(None, after, _KEEP_ALIVE, limit=_BATCH))
                    if found is None or (not found and now() - since < _KEEP_ALIVE / 2):
                        break  # the page is gone, or the store was closed
                    after = found[-1].event_id if found else latest
                    await write(b"".join(map(_message, _kinds(found, waiting))) or b": keep-alive\n\n")
                    if await watcher.wait(asyncio.sleep(_PAUSE, result=True)) is None:
                        break
            except StoreError:
                pass  # the page connects anew, and is told then
        await write(b"", more=False)


_KINDS = ("calls", "approvals", "turns", "sessions")


def _kinds(events: Sequence[Event], waiting: set[str]) -> list[str]:
    """What has changed. `waiting`: the calls that wait for an approval, which is kept up to date: a call may stop
    waiting because somebody decides elsewhere, or because nobody does in time."""
    found = set()
    for event in events:
        family = event.type.partition(".")[0]
        if family == "turn":
            found.add("turns")
        elif family == "call":
            found.add("calls")
            call_id, waits = event.data["call_id"], event.data.get("approval") == "waiting"
            waits = waits and event.data.get("status") == "pending"
            if waits is not (call_id in waiting):
                found.add("approvals")
                (waiting.add if waits else waiting.discard)(call_id)
        else:
            found.add("sessions")
    return [kind for kind in _KINDS if kind in found]


def _message(kind: str) -> bytes:
    return b"event: %s\ndata: {}\n\n" % kind.encode()
