"""What every part of the store in memory stands on: the records it keeps, whether it is open, and the events."""

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from store.backends._waiters import Waiters
from store.base import Store, StoreUnavailable
from store.models import CachedTools, Call, Session, Turn


@dataclass
class KeptTurn:
    """A turn with what belongs to it. `place` is its place in the order of saving."""

    place: int
    turn: Turn
    keys: set[bytes] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    """What is kept for one session. `open` are the ids of its calls that are not final, in the order of saving, and
    `revision` is told by the method of that name."""

    turns: dict[str, KeptTurn] = field(default_factory=dict)
    by_key: dict[bytes, dict[str, KeptTurn]] = field(default_factory=dict)
    cached: dict[str, CachedTools] = field(default_factory=dict)
    open: dict[str, None] = field(default_factory=dict)
    revision: int = 0

    def add_keys(self, entry: KeptTurn, keys: Iterable[bytes]) -> None:
        for key in keys:
            entry.keys.add(key)
            self.by_key.setdefault(key, {})[entry.turn.turn_id] = entry

    def drop(self, entry: KeptTurn) -> None:
        del self.turns[entry.turn.turn_id]
        for call_id in entry.calls:
            self.open.pop(call_id, None)
        for key in entry.keys:
            entries = self.by_key[key]
            del entries[entry.turn.turn_id]
            if not entries:
                del self.by_key[key]


class KeptCall(NamedTuple):
    place: int
    call: Call


class KeptEvent(NamedTuple):
    """An event with its data as JSON text: most events are never read."""

    event_id: int
    session: str
    type: str
    data: str
    created_at: float


class MemoryBase(Store):
    suspends: ClassVar[bool] = False

    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self._is_open = False
        self._waiters = Waiters()
        self._sessions: dict[str, Session] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._calls: dict[str, KeptCall] = {}
        self._events: list[KeptEvent] = []
        self._last_event = 0
        self._places = itertools.count(1)
        self._revisions = itertools.count(1)

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._waiters.close()

    async def ping(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the store in memory is not open")

    def _ledger(self, session: str) -> Ledger:
        """The session's ledger, to be read."""
        return self._ledgers.get(session) or Ledger()

    def _changed(self, ledger: Ledger) -> None:
        ledger.revision = next(self._revisions) if ledger.turns else 0

    def _record(self, *events: tuple[str, str, str]) -> None:
        """Events as (session, type, data), in order, all at one time."""
        now = self.clock()
        written = []
        for session, kind, data in events:
            self._last_event += 1
            self._events.append(KeptEvent(self._last_event, session, kind, data, now))
            written.append((self._last_event, session))
        self._waiters.wake(written)
