"""The last requests to models: what the log tells about each, also while it runs. They are kept in memory alone.

Nothing is made of a request before somebody asks: the summary that the log line is written from is kept as it is, and
read where it has come to.
"""

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from addon.core.summaries import ANSWERED_HERE, Summary, fields_of

MOST = 100
"""Ended requests that are kept."""

_MOST_RUNNING = 4096
_MOST_LISTED = 1000
_MOST_CALLS = 100
"""Calls and rounds of a record."""


@dataclass(slots=True)
class _Entry:
    """`began`: on the monotonic clock. `began_at`: Unix time. `record` stands in place of the summary of a
    request that has ended with calls, whose arguments may be large."""

    request_id: str
    summary: Summary | None
    began: float
    began_at: float
    ended: float | None = None
    record: dict[str, Any] | None = None


class RecentRequests:
    """`passed`: the requests that have begun since the start. `version` changes with each beginning and each end.
    `has_siblings`: other processes of the proxy have requests as well."""

    def __init__(self, most: int = MOST, *, has_siblings: bool = False) -> None:
        self.has_siblings = has_siblings
        self.version = 0
        self.passed = 0
        self._running: dict[int, _Entry] = {}
        self._ended: deque[_Entry] = deque(maxlen=most)
        self._prefix = secrets.token_hex(4)
        self._listeners: set[asyncio.Event] = set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def kept(self) -> int:
        return len(self._running) + len(self._ended)

    def begin(self, summary: Summary) -> None:
        self._running[id(summary)] = self._entry(summary, 0.0)
        if len(self._running) > _MOST_RUNNING:
            del self._running[next(iter(self._running))]
        self._changed()

    def end(self, summary: Summary) -> None:
        """The summary is complete. It need not have begun."""
        entry = self._running.pop(id(summary), None) or self._entry(summary, summary.seconds)
        entry.ended = entry.began + summary.seconds
        if summary.calls:
            entry.record = _record(entry, entry.ended)
            entry.summary = None
        self._ended.append(entry)
        self._changed()

    def records(self) -> list[dict[str, Any]]:
        """Newest first: see `addon.control.routes.requests`."""
        now = time.monotonic()
        entries = sorted([*self._ended, *self._running.values()], key=lambda one: one.began, reverse=True)
        return [_record(entry, now) for entry in entries[:_MOST_LISTED]]

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
        self.passed += 1
        began, began_at = time.monotonic() - seconds, time.time() - seconds
        return _Entry(f"req_{self._prefix}{self.passed:08x}", summary, began, began_at)

    def _changed(self) -> None:
        self.version += 1
        for event in self._listeners:
            event.set()


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
        calls.append(record | {"call_id": call.call_id} | times)
    rounds = [
        {"began": since(one.began), "seconds": round(max((one.ended or now) - one.began, 0.0), 3)}
        for one in summary.loop[:_MOST_CALLS]
    ]
    is_bad = summary.end not in ("", ANSWERED_HERE) or not 0 < summary.status < 400
    return fields | {
        "request_id": entry.request_id,
        "state": "running" if entry.ended is None else "failed" if is_bad else "done",
        "began_at": entry.began_at,
        "seconds": round(now - began, 3),
        "rounds": max(summary.rounds, len(summary.loop)),
        "round_times": rounds,
        "calls": calls,
    }
