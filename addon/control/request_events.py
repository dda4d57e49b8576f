"""Requests to models and the rounds of their loops, as events. Each reader compares the records of the last requests
with its previous look at them: nothing is stored, and nothing runs without readers."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from addon.recent_requests import number_of
from addon.web.api import ApiContext

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
