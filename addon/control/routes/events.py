"""Everything as it happens, as Server-Sent Events."""

import asyncio
import logging
from typing import Annotated

import pydantic_core
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.control.audience import Audience
from addon.control.describe import answers, group
from addon.control.problems import Problem
from addon.control.routing import Api, Here
from store.base import StoreError
from store.models import Event, SessionName

_log = logging.getLogger(__name__)
_BATCH = 16
"""Events at a time: their data may be large, and others have their turn in between."""

router = group("events")


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session: SessionName | None = Field(None, description="Only events of this session.")
    after: int | None = Field(None, ge=0, description="Start after this event id; 0: with the oldest that is kept.")


@router.get(
    "/v1/events",
    summary="Follow events (SSE)",
    response_class=Response,
    responses=answers(
        'id: 17\nevent: call.created\ndata: {"call_id": "call_5d0c2f", "status": "pending"}\n\n',
        media_type="text/event-stream",
    ),
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The last event that was seen; goes before `after`.",
                "schema": {"type": "integer", "minimum": 0},
                "example": 17,
            }
        ]
    },
)
async def follow_events(api: Here, request: Request, query: Annotated[EventsQuery, Query()]) -> Response:
    """`event` is the type, `data` the record as JSON. Without `Last-Event-ID` and `after` it starts with what happens
    from now on."""
    given = _last_event_id(request)
    after = query.after if given is None else given
    last = await api.store.last_event_id()
    if after is None:
        after = last
    elif after > last:
        after = 0  # the id is another store's (one in memory, before a restart): nothing of this one was seen
    return EventStream(api, query.session, after)


def _last_event_id(request: Request) -> int | None:
    given = request.headers.get("last-event-id")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise Problem(422, "Last-Event-ID: must be the id of an event, a whole number", field="Last-Event-ID")
    return int(given)


class EventStream(Response):
    """An answer that lasts until the client hangs up, the server stops, or the store closes or fails."""

    def __init__(self, api: Api, session: str | None, after: int, *, keep_alive: float = 15.0) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._session = session
        self._after = after
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        now = asyncio.get_running_loop().time
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await write(b": toolgraft\n\n")
        async with Audience(receive, self._api.stopping) as audience:
            try:
                while not audience.gone:
                    events = await self._api.store.events(after=self._after, session=self._session, limit=_BATCH)
                    if events:
                        self._after = events[-1].event_id
                        await write(b"".join(map(_encode, events)))
                        continue
                    since = now()
                    wait = self._api.store.wait(after=self._after, timeout=self._keep_alive, session=self._session)
                    if await audience.wait(wait):
                        continue
                    if now() - since < self._keep_alive / 2:
                        break  # not the time was out: the client is gone, or the store was closed
                    await write(b": keep-alive\n\n")
            except StoreError as error:
                _log.warning("an event stream ends: %s", type(error).__name__)
        await write(b"", more=False)


def _encode(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (
        event.event_id,
        event.type.encode(),
        pydantic_core.to_json(event.data),
    )
