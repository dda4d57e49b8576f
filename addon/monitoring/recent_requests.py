"""The last requests to models, also running ones: the facts of their log lines, the bodies of some, and the usage of
each session since the start. In memory only.

A request's record is built only when it is read, from the live summary that the log line will also use. At most
`graft_keep_requests` bodies and MOST_BYTES are kept. Other modules get them without secrets.
"""

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from addon.core.history.keys import asker_digest
from addon.core.security.secrets import REMOVED_SECRET, is_secret_header, masked, secrets_in
from addon.core.summaries import CALL_STATES, Summary, fields_of
from addon.monitoring.own_secrets import own_secrets
from addon.surfaces.incoming import Incoming

_MOST_SESSIONS = 1000
"""Limited because clients choose session names."""


@dataclass(slots=True)
class Usage:
    """Counts of ended requests. `since`: Unix time from which on all are counted. `calls`: by the state of each call
    when its request ended. `last_used_at`: Unix time of the last end, or None."""

    since: float
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALL_STATES, 0))
    last_used_at: float | None = None

    def count(self, summary: Summary, now: float) -> None:
        self.requests += 1
        self.failed += summary.has_failed
        self.prompt_tokens += summary.prompt
        self.output_tokens += summary.output
        for call in summary.calls:
            self.calls[call.state] += 1
        self.last_used_at = now


class SessionUsage:
    """The usage by session. If there are more than `most` sessions, the last used are kept."""

    def __init__(self, most: int = _MOST_SESSIONS) -> None:
        self._most = most
        self._since = time.time()
        self._by_session: OrderedDict[str, Usage] = OrderedDict()

    def count(self, summary: Summary) -> None:
        summary.count_end()
        now = time.time()
        usage = self._by_session.get(summary.session)
        if usage is None:
            usage = self._by_session[summary.session] = Usage(self._since)
            if len(self._by_session) > self._most:
                self._by_session.popitem(last=False)
                self._since = now  # a session that is no longer known may have been used before
        usage.count(summary, now)
        self._by_session.move_to_end(summary.session)

    def of(self, session: str) -> Usage:
        return self._by_session.get(session) or Usage(self._since)


MOST_BYTES = 64 * 1024 * 1024

_PER_REQUEST = 1024
"""The approximate memory use of a request in bytes, besides its bodies."""

_CONNECTION_HEADERS = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding", b"proxy-authorization")
)
"""Headers that describe the connection, not the request."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """A request with its secrets, and the body that went upstream (`sent`). Other modules get a `CleanRequest`."""

    incoming: Incoming
    sent: bytes

    @property
    def size(self) -> int:
        """The approximate memory use in bytes."""
        client = self.incoming.body
        return _PER_REQUEST + len(client) + (0 if self.sent is client else len(self.sent))


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """A request without secrets. `client`: the client's body, or what a front door made of it (`at_door`). `sent`: the
    body that went upstream. `headers`: only those of the request, not of the connection; secret values are
    REMOVED_SECRET. `asker`: the digest of who asked."""

    session: str
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    client: bytes
    sent: bytes
    asker: bytes
    at_door: bool
    turn_ids: Mapping[int, str]

    @classmethod
    def of(cls, session: str, bodies: Bodies, secret: bytes) -> Self:
        """`secret`: the store's."""
        incoming = bodies.incoming
        fields = tuple(incoming.fields)
        redaction = own_secrets.combined_with(secrets_in(incoming.url, fields))
        headers = [
            (
                name.decode("latin-1"),
                REMOVED_SECRET if is_secret_header(name) else redaction.text(masked(_text(value), REMOVED_SECRET)),
            )
            for name, value in fields
            if name.lower() not in _CONNECTION_HEADERS and not name.startswith(b":")
        ]
        client = redaction.data(incoming.body)
        return cls(
            session,
            incoming.method,
            redaction.text(masked(incoming.url, REMOVED_SECRET)),
            headers,
            client,
            client if bodies.sent is incoming.body else redaction.data(bodies.sent),
            asker_digest(secret, incoming.asker),
            incoming.at_door,
            incoming.turn_ids,
        )


class KeptRequests:
    """Bodies by request id, oldest first. `most`: the limit of their number."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._kept: OrderedDict[str, Bodies] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._kept

    def put(self, request_id: str, bodies: Bodies) -> None:
        self._kept[request_id] = bodies
        self.size += bodies.size
        self.shrink()

    def get(self, request_id: str) -> Bodies | None:
        return self._kept.get(request_id)

    def shrink(self) -> None:
        while self._kept and (len(self._kept) > self.most or self.size > MOST_BYTES):
            self.size -= self._kept.popitem(last=False)[1].size


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


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
