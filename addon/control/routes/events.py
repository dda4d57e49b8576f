"""All changes of the store's records, as Server-Sent Events."""

import asyncio
import logging
from typing import Annotated

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.control.views import event_data
from addon.web.access import OWNER, needs
from addon.web.describe import Group, answers
from addon.web.disconnect import DisconnectWatcher
from addon.web.problems import Problem
from addon.web.routing import ApiContext, ApiDep, Query
from store.base import BadCursor, CursorLost, StoreError
from store.models import Event, SessionName

_log = logging.getLogger(__name__)
_BATCH = 16
"""Events at a time. Their data may be large; other tasks run between two batches."""

_RESET = b"event: store.reset\ndata: %s\n\n" % pydantic_core.to_json(
    {"detail": "the store no longer has the events after the given id: all events that it still has follow"}
)

router = Group("events")


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: SessionName | None = Field(None, description="Only events of this session.")
    after: str | None = Field(None, description="Start after this event id; 0: start with the oldest stored event.")


@router.get(
    "/v1/events",
    summary="Follow events (SSE)",
    response_class=Response,
    responses=answers(
        'id: 1f3a9c07-17\nevent: call.created\ndata: {"call_id": "call_5d0c2f", "status": "pending"}\n\n',
        media_type="text/event-stream",
    ),
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The last event that was received; takes precedence over `after`.",
                "schema": {"type": "string"},
                "example": "1f3a9c07-17",
            }
        ]
    },
)
@needs("read")
async def follow_events(api: ApiDep, request: Request, query: Annotated[EventsQuery, Query()]) -> Response:
    """`event` is the type, `data` the record as JSON. Without `Last-Event-ID` and `after` the stream starts with new
    events. An `id` without data, at the start and in each keep-alive, is the position of a reader that has received no
    event since. If the store no longer has the events after an id, because they expired or the store was lost or
    replaced, an event `store.reset` comes first, and then all stored events from the oldest."""
    given = request.headers.get("last-event-id")
    field, after = ("after", query.after) if given is None else ("Last-Event-ID", given)
    if after is None:
        after = await api.store.last_event_id()
    elif after == "0":
        after = None
    try:
        await api.store.events(after=after, session=query.session, limit=1)
    except CursorLost:
        return EventStream(api, query.session, None, is_reset=True)
    except BadCursor:
        raise Problem(422, f"{field}: must be an event id from this stream", field=field) from None
    return EventStream(api, query.session, after)


class EventStream(Response):
    """A stream that lasts until the client hangs up, its token is revoked or its page's session ends, the server stops,
    or the store closes or fails."""

    def __init__(
        self,
        api: ApiContext,
        session: str | None,
        after: str | None,
        *,
        is_reset: bool = False,
        keep_alive: float = 15.0,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._session = session
        self._after = after
        self._is_reset = is_reset
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        now = asyncio.get_running_loop().time
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await write(_position(b"toolgraft", self._after) + _RESET * self._is_reset)
        async with DisconnectWatcher(receive, *self._api.ends(scope.get("access", OWNER))) as watcher:
            try:
                while not watcher.gone:
                    since, last_event = now(), await self._api.store.last_event_id()
                    follow = self._api.store.follow(self._session, self._after, self._keep_alive, limit=_BATCH)
                    events = await watcher.wait(follow)
                    if self._api.has_ended(scope):
                        break
                    if events:
                        self._after = events[-1].event_id
                        await write(b"".join(map(_encode, events)))
                        continue
                    if now() - since < self._keep_alive / 2:
                        break  # this was no timeout: the client is gone, or the store was closed
                    self._after = last_event  # no event up to this id is for this reader, even if events expire
                    await write(_position(b"keep-alive", last_event))
            except (StoreError, OSError) as error:
                _log.warning("an event stream ends: %s", type(error).__name__)
        await write(b"", more=False)


def _position(comment: bytes, event_id: str | None) -> bytes:
    """A comment, and the id after which a reader resumes if no event follows."""
    return b": %s\n\n" % comment if event_id is None else b": %s\nid: %s\n\n" % (comment, event_id.encode())


def _encode(event: Event) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        event.event_id.encode(),
        event.type.encode(),
        pydantic_core.to_json(event_data(event)),
    )
