"""Changes of the store's records and, on demand, requests to models, as Server-Sent Events."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from addon.control.request_events import RequestEvents
from addon.control.views import event_data
from addon.web.access import needs
from addon.web.api import ApiDep, answers, own_query, routes_of
from addon.web.event_streams import KEEP_ALIVE, event_stream, sse
from addon.web.problems import Problem
from store.base import BadCursor, CursorLost, Store
from store.models import SessionName

_BATCH = 16
"""The most events of a batch. Their data may be large; other tasks run between two batches."""

_RESET = sse(
    event="store.reset",
    data='{"detail":"the store no longer has the events after the given id: all events that it still has follow"}',
)

router = routes_of("events")


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
async def follow_events(
    api: ApiDep, request: Request, query: Annotated[EventsQuery, own_query(EventsQuery)]
) -> Response:
    """`event` is the type, `data` the record as JSON. Without `Last-Event-ID` and `after` the stream starts with new
    events. An `id` without data, at the start and in each keep-alive, is the position of a reader that has received no
    event since. If the store no longer has the events after an id, because they expired or the store was lost or
    replaced, an event `store.reset` comes first, and then all stored events from the oldest.

    With `requests`, the stream also has `request.began` and `request.ended`, whose data is the record of
    `GET /v1/requests`, and `round.began` and `round.ended`. They have no `id` and are not repeated. A stream begins
    with the requests that run. `requests.dropped` says of how many requests events are missing, because there were
    too many. With `stored=0` the stream has only these."""
    requests = [_requests(RequestEvents(api, query.session))] if query.requests else []
    if not query.stored:
        if requests:
            return event_stream(api, request, _silence(), *requests)
        raise Problem(422, "stored: without stored events there is nothing to follow; use requests=1", field="stored")
    given = request.headers.get("last-event-id")
    field, after = ("after", query.after) if given is None else ("Last-Event-ID", given)
    if after is None:
        after = await api.store.last_event_id()
    elif after == "0":
        after = None
    records = _Records(api.store, query.session, after)
    try:
        await api.store.events(after=after, session=query.session, limit=1)
    except CursorLost:
        records = _Records(api.store, query.session, None, is_reset=True)
    except BadCursor:
        raise Problem(422, f"{field}: must be an event id from this stream", field=field) from None
    return event_stream(api, request, records.events(), *requests, position=lambda: records.position)


class _Records:
    """The changes of the store's records. `position`: the id after which a reader resumes."""

    def __init__(self, store: Store, session: str | None, after: str | None, *, is_reset: bool = False) -> None:
        self.position = after
        self._store = store
        self._session = session
        self._is_reset = is_reset

    async def events(self) -> AsyncGenerator[ServerSentEvent]:
        """Ends when the store is closed."""
        yield sse(comment="toolgraft", id=self.position)
        if self._is_reset:
            yield _RESET
        now = asyncio.get_running_loop().time
        while True:
            since, last_event = now(), await self._store.last_event_id()
            events = await self._store.follow(self._session, self.position, KEEP_ALIVE, limit=_BATCH)
            for event in events:
                data = pydantic_core.to_json(event_data(event)).decode()
                yield sse(id=event.event_id, event=event.type, data=data)
                self.position = event.event_id
            if not events:
                if now() - since < KEEP_ALIVE / 2:
                    return
                self.position = last_event  # no event up to this id is for this reader, even if events expire


async def _silence() -> AsyncGenerator[ServerSentEvent]:
    yield sse(comment="toolgraft")
    await asyncio.Event().wait()


async def _requests(requests: RequestEvents) -> AsyncGenerator[ServerSentEvent]:
    found = requests.start()
    while True:
        for one in found:
            yield sse(event=one.type, data=pydantic_core.to_json(one.data).decode())
        found = await requests.next()
