"""The base of the store in memory: its records, whether it is open, and the events."""

import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from store.backends._changes import Changes, Deletions
from store.backends._clocks import Clocks
from store.backends._waiters import Waiters
from store.backends._waits import Waits
from store.base import StoreUnavailable
from store.budget import Budget
from store.models import CachedTools, Call, Session, Turn, UndeliveredAnswer


@dataclass
class StoredTurn:
    """A turn with its keys and calls. `place`: its position in the order of saving."""

    place: int
    turn: Turn
    keys: set[bytes] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    """The records of one session. `plain`: the keys of turns without calls, with the time of the note and the chain of
    each. `open`: the ids of calls that are not final, in the order of saving. `revision`: as the method of that name;
    `changes`: the writes that led to it."""

    turns: dict[str, StoredTurn] = field(default_factory=dict)
    by_key: dict[bytes, dict[str, StoredTurn]] = field(default_factory=dict)
    plain: dict[bytes, tuple[float, bytes]] = field(default_factory=dict)
    by_request: dict[bytes, dict[str, StoredTurn]] = field(default_factory=dict)
    cached: dict[str, CachedTools] = field(default_factory=dict)
    open: dict[str, None] = field(default_factory=dict)
    revision: int = 0
    changes: Changes = field(default_factory=Changes)

    def add_keys(self, entry: StoredTurn, keys: Iterable[bytes]) -> None:
        for key in keys:
            entry.keys.add(key)
            self.by_key.setdefault(key, {})[entry.turn.turn_id] = entry

    def drop(self, entry: StoredTurn) -> None:
        del self.turns[entry.turn.turn_id]
        for call_id in entry.calls:
            self.open.pop(call_id, None)
        for key in entry.keys:
            entries = self.by_key[key]
            del entries[entry.turn.turn_id]
            if not entries:
                del self.by_key[key]


MAX_EVENTS = 100_000
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The number of events that are kept, and their characters: nothing else grows with every write."""


class StoredCall(NamedTuple):
    place: int
    call: Call


class StoredEvent(NamedTuple):
    """An event with its data as JSON text: most events are never read."""

    number: int
    session: str
    type: str
    data: str
    created_at: float


@dataclass
class StoredAnswer:
    """An answer that was not handed over yet."""

    undelivered: UndeliveredAnswer
    kept_at: float
    broke_off: float | None = None


class MemoryBase(Waits):
    suspends: ClassVar[bool] = False

    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self.secret = secrets.token_bytes(32)
        self.epoch = secrets.token_hex(4)
        self._is_open = False
        self._waiters = Waiters()
        self._sessions: dict[str, Session] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._calls: dict[str, StoredCall] = {}
        self._clocks = Clocks(lambda: self.clock(), lambda: self.uptime())  # both may be replaced
        self._leases: dict[str, float] = {}  # of proxies: when they run out, in steady time
        self._last_alive: dict[str, float] = {}  # by proxy: when it was last alive, in steady time
        self._unsent: dict[tuple[str, str], StoredAnswer] = {}  # by session and response
        self._events: list[StoredEvent] = []
        self._event_bytes = 0
        self._last_event = self._lost_event = 0
        """The number of the last event, and of the last event that was dropped."""
        self._places = itertools.count(1)
        self._revisions = itertools.count(1)

    def remember_within(self, budget: Budget) -> None:
        self._deleted = Deletions(budget)

    async def open(self) -> None:
        self._is_open = True
        self._clocks = Clocks(lambda: self.clock(), lambda: self.uptime())
        self._leases.clear()

    async def close(self) -> None:
        self._is_open = False
        self._waiters.close()

    @property
    def clock_doubt(self) -> str:
        return self._clocks.note.doubt

    async def trust_clock(self) -> str:
        self._check_open()
        doubt = self.clock_doubt
        self._clocks.note = self._clocks.trusted()
        return doubt

    async def ping(self) -> None:
        self._check_open()

    async def sync(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the store in memory is not open")

    def _ledger(self, session: str) -> Ledger:
        """The session's ledger, for reading only."""
        return self._ledgers.get(session) or Ledger()

    def _changed(self, ledger: Ledger, turn_ids: Collection[str] | None = None, keys: Collection[bytes] = ()) -> None:
        """A write concerned these turns and keys; None: any."""
        before, ledger.revision = ledger.revision, next(self._revisions) if ledger.turns else 0
        if turn_ids is not None:
            ledger.changes.note(before, ledger.revision, turn_ids, keys)

    def _drop_events(self) -> None:
        """Drop the oldest events, and more than necessary, so that this is not done for each new event."""
        number, size = 0, self._event_bytes
        while number < len(self._events) and (
            len(self._events) - number > MAX_EVENTS * 7 // 8 or size > MAX_EVENT_BYTES * 7 // 8
        ):
            size -= len(self._events[number].data)
            number += 1
        self._lost_event = self._events[number - 1].number
        self._keep_events(self._events[number:])

    def _keep_events(self, events: list[StoredEvent]) -> None:
        self._events = events
        self._event_bytes = sum(len(event.data) for event in events)

    def _record(self, *events: tuple[str, str, str], calls: Sequence[Call] = (), changed: Sequence[str] = ()) -> None:
        """Record events as (session, type, data), in order, with one time. `calls`, `changed`: as for `_wake`."""
        now = self.clock()
        for session, kind, data in events:
            self._last_event += 1
            self._events.append(StoredEvent(self._last_event, session, kind, data, now))
            self._event_bytes += len(data)
        if len(self._events) > MAX_EVENTS or self._event_bytes > MAX_EVENT_BYTES:
            self._drop_events()
        if self._waiters:
            self._wake({session for session, *_ in events}, calls, changed)
