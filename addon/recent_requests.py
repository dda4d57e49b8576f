"""The last requests to models: what the log tells about each, also while it runs, and the bodies of some. They are kept
in memory alone.

Nothing is made of a request before somebody asks: the summary that the log line is written from is kept as it is, and
read where it has come to.
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
"""Ended requests that are kept."""

_DIGITS = 8
_MOST_RUNNING = 4096
_MOST_LISTED = 1000
_MOST_CALLS = 100
"""Calls and rounds of a record."""


@dataclass(slots=True)
class _Entry:
    """`began`: on the monotonic clock. `began_at`: Unix time. `version`: of the end. `record` stands in place of
    the summary of a request that has ended with calls, whose arguments may be large."""

    request_id: str
    summary: Summary | None
    began: float
    began_at: float
    ended: float | None = None
    version: int = 0
    record: dict[str, Any] | None = None


class RecentRequests:
    """`version` changes with each beginning and each end. `bodies`: those that are kept."""

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
        """The requests since the start that are not kept any more."""
        return self._count - len(self._running) - len(self._ended)

    def begin(self, summary: Summary, bodies: Bodies | None = None) -> None:
        self._running[id(summary)] = entry = self._entry(summary, 0.0)
        if bodies is not None and self.bodies.most:
            self.bodies.put(entry.request_id, bodies)
        if len(self._running) > _MOST_RUNNING:
            del self._running[next(iter(self._running))]
        self._changed()

    def end(self, summary: Summary) -> None:
        """The summary is complete. It need not have begun."""
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
        """Newest first: see `addon.control.routes.requests`. Those that have ended up to the version `since` are left
        out."""
        now = time.monotonic()
        ended = (entry for entry in self._ended if entry.version > since)
        entries = sorted([*ended, *self._running.values()], key=lambda one: one.began, reverse=True)
        return [self._record(entry, now) for entry in entries[:_MOST_LISTED]]

    def record(self, request_id: str) -> dict[str, Any] | None:
        """One of `records`; None if it is not kept."""
        found = (one for one in (*self._ended, *self._running.values()) if one.request_id == request_id)
        entry = next(found, None)
        return None if entry is None else self._record(entry, time.monotonic())

    def clean(self, request_id: str, secret: bytes) -> CleanRequest | None:
        """The request with its bodies, without secrets; None if they are not kept. `secret`: the store's."""
        record, bodies = self.record(request_id), self.bodies.get(request_id)
        return None if record is None or bodies is None else CleanRequest.of(record["session"], bodies, secret)

    def _record(self, entry: _Entry, now: float) -> dict[str, Any]:
        return _record(entry, now) | {"has_bodies": entry.request_id in self.bodies}

    async def change(self, version: int) -> None:
        """Wait until something has changed since this version."""
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
    """Which of the proxy's requests it is, from 1."""
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
