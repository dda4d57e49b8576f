"""The last requests to models, also running ones: the facts of their log lines, and the bodies of some. In memory only.

A request's record is built only when it is read, from the live summary that the log line will also use.
"""

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from addon.core.summaries import Summary, fields_of
from addon.kept_requests import Bodies, CleanRequest, KeptRequests
from addon.session_usage import SessionUsage

MOST = 100
"""The most ended requests that are kept."""

_DIGITS = 8
_MOST_RUNNING = 4096
_MOST_LISTED = 1000
_MOST_CALLS = 100
"""The most calls and rounds in a record."""


@dataclass(slots=True)
class _Entry:
    """`began`: on the monotonic clock. `began_at`: Unix time. `version`: of the end. `record` replaces the summary of
    an ended request with calls, whose arguments may be large."""

    request_id: str
    summary: Summary | None
    began: float
    began_at: float
    ended: float | None = None
    version: int = 0
    record: dict[str, Any] | None = None


class RecentRequests:
    """`version` changes when a request begins or ends. `bodies`: the requests with bodies."""

    def __init__(self, most: int = MOST, *, most_bodies: int = MOST) -> None:
        self.usage = SessionUsage()
        self.bodies = KeptRequests(most_bodies)
        self.version = 0
        self._running: dict[int, _Entry] = {}
        self._ended: deque[_Entry] = deque(maxlen=most)
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self._listeners: set[asyncio.Event] = set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def forgotten(self) -> int:
        """How many requests since the start are no longer kept."""
        return self._count - len(self._running) - len(self._ended)

    def begin(self, summary: Summary, bodies: Bodies | None = None) -> None:
        self._running[id(summary)] = entry = self._entry(summary, 0.0)
        if bodies is not None and self.bodies.most:
            self.bodies.put(entry.request_id, bodies)
        if len(self._running) > _MOST_RUNNING:
            del self._running[next(iter(self._running))]
        self._changed()

    def end(self, summary: Summary) -> None:
        """Record the end of a request. It need not have begun here."""
        entry = self._running.pop(id(summary), None) or self._entry(summary, summary.seconds)
        entry.ended = entry.began + summary.seconds
        self.usage.count(summary)
        if summary.calls:
            entry.record = _record(entry, entry.ended)
            entry.summary = None
        self._ended.append(entry)
        self._changed()
        entry.version = self.version

    def records(self, since: int = -1) -> list[dict[str, Any]]:
        """Newest first, see `addon.control.routes.requests`, without those that ended up to the version `since`."""
        now = time.monotonic()
        ended = (entry for entry in self._ended if entry.version > since)
        entries = sorted([*ended, *self._running.values()], key=lambda one: one.began, reverse=True)
        return [self._record(entry, now) for entry in entries[:_MOST_LISTED]]

    def record(self, request_id: str) -> dict[str, Any] | None:
        """One of `records`; None if the request is no longer kept."""
        found = (one for one in (*self._ended, *self._running.values()) if one.request_id == request_id)
        entry = next(found, None)
        return None if entry is None else self._record(entry, time.monotonic())

    def clean(self, request_id: str, secret: bytes) -> CleanRequest | None:
        """The request with its bodies, without secrets; None if its bodies are not kept. `secret`: the store's."""
        record, bodies = self.record(request_id), self.bodies.get(request_id)
        return None if record is None or bodies is None else CleanRequest.of(record["session"], bodies, secret)

    def _record(self, entry: _Entry, now: float) -> dict[str, Any]:
        return _record(entry, now) | {"has_bodies": entry.request_id in self.bodies}

    async def change(self, version: int) -> None:
        """Wait until `version` differs from this one."""
        if self.version != version:
            return
        event = asyncio.Event()
        self._listeners.add(event)
        try:
            await event.wait()
        finally:
            self._listeners.discard(event)

    def _entry(self, summary: Summary, seconds: float) -> _Entry:
        self._count += 1
        began, began_at = time.monotonic() - seconds, time.time() - seconds
        return _Entry(f"req_{self._prefix}{self._count:0{_DIGITS}x}", summary, began, began_at)

    def _changed(self) -> None:
        self.version += 1
        for event in self._listeners:
            event.set()


def number_of(request_id: str) -> int:
    """The number of a request, counted from 1 since the start."""
    return int(request_id[-_DIGITS:], 16)


def _record(entry: _Entry, now: float) -> dict[str, Any]:
    if (summary := entry.summary) is None:
        assert entry.record is not None
        return entry.record
    began = entry.began
    now = now if entry.ended is None else entry.ended
    summary.count_end()
    fields = fields_of(summary)
    del fields["event"]

    def since(moment: float) -> float:
        return round(max(moment - began, 0.0), 3)

    calls = []
    for call, record in zip(summary.calls[:_MOST_CALLS], fields["calls"], strict=False):
        seconds = call.seconds if call.seconds is not None or call.began is None else now - call.began
        times = {"began": None if call.began is None else since(call.began), "seconds": seconds and round(seconds, 3)}
        times["waited"] = None if call.waited is None else round(call.waited, 3)
        calls.append(record | {"call_id": call.call_id} | times)
    rounds = [
        {
            "began": since(one.began),
            "seconds": round(max((one.ended or now) - one.began, 0.0), 3),
            "state": "running" if one.ended is None and entry.ended is None else "done",
        }
        for one in summary.loop[:_MOST_CALLS]
    ]
    return fields | {
        "user_agent": summary.user_agent,
        "request_id": entry.request_id,
        "turn_id": summary.turn_id,
        "state": "running" if entry.ended is None else "failed" if summary.has_failed else "done",
        "began_at": entry.began_at,
        "seconds": round(now - began, 3),
        "rounds": max(summary.rounds, len(summary.loop)),
        "round_times": rounds,
        "calls": calls,
    }
