"""Changes of the store's records and, on demand, requests to models, as Server-Sent Events.

Requests and the rounds of their loops have no stored events: each reader compares the records of the last requests with
its previous look at them, and nothing runs without readers."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from addon.control.views import event_data
from addon.monitoring.recent_requests import number_of
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, answers, own_query, routes_of
from addon.web.event_streams import KEEP_ALIVE, event_stream, sse
from addon.web.problems import Problem
from store.base import BadCursor, CursorLost, Store
from store.models import SessionName

PAUSE = 0.25
"""Seconds in which events are collected for one batch."""
_MOST = 256
"""The most events of a batch."""


class RequestEvent(NamedTuple):
    """`data`: for a request, its record in `GET /v1/requests`."""

    type: str
    data: dict[str, Any]


class _Rounds(NamedTuple):
    """The number of a request's rounds that have begun, and that have ended."""

    begun: int
    ended: int


class RequestEvents:
    """The events of one reader, from `start` on. `session` None: of all sessions."""

    def __init__(self, api: ApiContext, session: str | None = None) -> None:
        self._api = api
        self._session = session
        self._version = -1  # at the last look
        self._looked_at = 0.0
        self._has_started = False
        self._running: dict[str, _Rounds] = {}
        self._newest = 0

    def start(self) -> list[RequestEvent]:
        """The running requests, as `request.began`."""
        return self._look()

    async def next(self) -> list[RequestEvent]:
        while True:
            await self._pause()
            if not self._running:
                await self._api.recent.change(self._version)
            if events := self._look():
                return events

    async def change(self) -> None:
        """Wait until events are possible; returns immediately while requests run, because their durations grow. For
        readers that need no events: nothing is compared."""
        recent = self._api.recent
        if not recent.running:
            await recent.change(self._version)
        self._version = recent.version

    async def _pause(self) -> None:
        await asyncio.sleep(max(0.0, self._looked_at + PAUSE - asyncio.get_running_loop().time()))

    def _look(self) -> list[RequestEvent]:
        recent = self._api.recent
        records = recent.records(since=self._version)[::-1]
        self._version, self._looked_at = recent.version, asyncio.get_running_loop().time()
        return self._compare(records)

    def _compare(self, records: Sequence[dict[str, Any]]) -> list[RequestEvent]:
        """The differences between these records, oldest first, and the last look."""
        events: list[RequestEvent] = []
        before, self._running = self._running, {}
        newest, unlisted = self._newest, 0
        for record in records:
            request_id = record["request_id"]
            is_new = (number := number_of(request_id)) > self._newest
            newest = max(number, newest)
            unlisted -= is_new
            if record["state"] == "running":
                self._running[request_id] = _rounds(record)
            elif request_id not in before and not (is_new and self._has_started):
                continue
            if self._session in (None, record["session"]):
                events += _events(record, before.get(request_id))
        if self._has_started:
            listed = {record["request_id"] for record in records}
            unlisted += newest - self._newest + len(before.keys() - listed)
            events = _bounded(events, unlisted)
        self._newest, self._has_started = newest, True
        return events


def _events(record: dict[str, Any], known: _Rounds | None) -> Iterator[RequestEvent]:
    """The events of a request since the last look. `known` None: it has begun since."""
    if known is None:
        yield RequestEvent("request.began", record)
        known = _Rounds(0, 0)
    now = _rounds(record)
    for place in range(min(known), now.begun):
        data = {"request_id": record["request_id"], "session": record["session"], "round": place + 1}
        data |= record["round_times"][place]
        if place >= known.begun:
            yield RequestEvent("round.began", data)
        if known.ended <= place < now.ended:
            yield RequestEvent("round.ended", data)
    if record["state"] != "running":
        yield RequestEvent("request.ended", record)


def _rounds(record: dict[str, Any]) -> _Rounds:
    times = record["round_times"]
    return _Rounds(len(times), sum(one["state"] != "running" for one in times))


def _bounded(events: list[RequestEvent], unlisted: int) -> list[RequestEvent]:
    """The events to send. `unlisted`: the number of requests that are no longer in the list."""
    kept = events[:_MOST]
    missing = unlisted + len({event.data["request_id"] for event in events[_MOST:]})
    if missing:
        detail = "there are more requests than this stream tells of: GET /v1/requests lists the last ones"
        kept.append(RequestEvent("requests.dropped", {"requests": missing, "detail": detail}))
    return kept


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
