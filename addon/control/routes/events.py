"""All changes of the store's records, and on demand the requests to models, as Server-Sent Events."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Annotated, Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.control.request_events import RequestEvent, RequestEvents
from addon.control.views import event_data
from addon.web.access import OWNER, needs
from addon.web.describe import Group, answers
from addon.web.disconnect import DisconnectWatcher
from addon.web.problems import Problem
from addon.web.routing import ApiContext, ApiDep, Query
from addon.web.waits import Waits
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
    requests: bool = Field(False, description="Also requests to models and their rounds, which are not stored.")
    stored: bool = Field(True, description="Whether the stream has the changes of records.")


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
    replaced, an event `store.reset` comes first, and then all stored events from the oldest.

    With `requests`, the stream also has `request.began` and `request.ended`, whose data is the record of
    `GET /v1/requests`, and `round.began` and `round.ended`. They have no `id` and are not repeated. A stream begins
    with the requests that run. `requests.dropped` says of how many requests events are missing, because there were
    too many. With `stored=0` the stream has only these."""
    if not query.stored:
        if query.requests:
            return EventStream(api, query.session, None, requests=True, stored=False)
        raise Problem(422, "stored: without stored events there is nothing to follow; use requests=1", field="stored")
    given = request.headers.get("last-event-id")
    field, after = ("after", query.after) if given is None else ("Last-Event-ID", given)
    if after is None:
        after = await api.store.last_event_id()
    elif after == "0":
        after = None
    try:
        await api.store.events(after=after, session=query.session, limit=1)
    except CursorLost:
        return EventStream(api, query.session, None, is_reset=True, requests=query.requests)
    except BadCursor:
        raise Problem(422, f"{field}: must be an event id from this stream", field=field) from None
    return EventStream(api, query.session, after, requests=query.requests)


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
        requests: bool = False,
        stored: bool = True,
        keep_alive: float = 15.0,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._session = session
        self._after = after
        self._is_reset = is_reset
        self._requests = RequestEvents(api, session) if requests else None
        self._stored = self._records if stored else self._silence
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sources: list[Callable[[], Coroutine[Any, Any, bytes]]] = [self._stored]
        start = _position(b"toolgraft", self._after) + _RESET * self._is_reset
        if self._requests is not None:
            sources.append(partial(_request_batch, self._requests))
            start += _batch(await self._requests.start())
        await write(start)
        async with DisconnectWatcher(receive, *self._api.ends(scope.get("access", OWNER))) as watcher:
            try:
                async with Waits(*sources) as waits:
                    while chunk := await watcher.wait(waits.next()):
                        if self._api.has_ended(scope):
                            break
                        await write(chunk)
            except (StoreError, OSError) as error:
                _log.warning("an event stream ends: %s", type(error).__name__)
        await write(b"", more=False)

    async def _silence(self) -> bytes:
        await asyncio.sleep(self._keep_alive)
        return b": keep-alive\n\n"

    async def _records(self) -> bytes:
        """The next stored events, or a keep-alive. Empty: the store was closed."""
        now = asyncio.get_running_loop().time
        since, last_event = now(), await self._api.store.last_event_id()
        events = await self._api.store.follow(self._session, self._after, self._keep_alive, limit=_BATCH)
        if events:
            self._after = events[-1].event_id
            return b"".join(map(_encode, events))
        if now() - since < self._keep_alive / 2:
            return b""
        self._after = last_event  # no event up to this id is for this reader, even if events expire
        return _position(b"keep-alive", last_event)


def _position(comment: bytes, event_id: str | None) -> bytes:
    """A comment, and the id after which a reader resumes if no event follows."""
    return b": %s\n\n" % comment if event_id is None else b": %s\nid: %s\n\n" % (comment, event_id.encode())


def _encode(event: Event) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        event.event_id.encode(),
        event.type.encode(),
        pydantic_core.to_json(event_data(event)),
    )


async def _request_batch(requests: RequestEvents) -> bytes:
    return _batch(await requests.next())


def _batch(events: Iterable[RequestEvent]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (one.type.encode(), pydantic_core.to_json(one.data)) for one in events)
