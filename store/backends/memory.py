"""The store in this process's memory: nothing outlives the process, and no other process sees it.

Every method runs from its start to its end without a suspension, which is what makes it atomic. Records are kept as
private copies: what a caller does to its own dict afterwards changes nothing here.
"""

import bisect
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Self

import pydantic_core

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._memory_responses import MemoryResponses
from store.base import MATCHES, UnknownCall
from store.models import CachedTools, Call, Event, Found, Page, Policy, Session, Status, Toolset, Turn


@dataclass
class _Turn:
    """A turn with what belongs to it. `place` is its place in the order of saving."""

    place: int
    turn: Turn
    keys: set[bytes] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)


@dataclass
class _Ledger:
    """What is kept for one session. `open` are the ids of its calls that are not final, in the order of saving, and
    `revision` is told by `MemoryStore.revision`."""

    turns: dict[str, _Turn] = field(default_factory=dict)
    by_key: dict[bytes, dict[str, _Turn]] = field(default_factory=dict)
    cached: dict[str, CachedTools] = field(default_factory=dict)
    open: dict[str, None] = field(default_factory=dict)
    revision: int = 0

    def add_keys(self, entry: _Turn, keys: Iterable[bytes]) -> None:
        for key in keys:
            entry.keys.add(key)
            self.by_key.setdefault(key, {})[entry.turn.turn_id] = entry

    def drop(self, entry: _Turn) -> None:
        del self.turns[entry.turn.turn_id]
        for call_id in entry.calls:
            self.open.pop(call_id, None)
        for key in entry.keys:
            entries = self.by_key[key]
            del entries[entry.turn.turn_id]
            if not entries:
                del self.by_key[key]


class _Call(NamedTuple):
    place: int
    call: Call


class _Event(NamedTuple):
    """An event with its data as JSON text: most events are never read."""

    event_id: int
    session: str
    type: str
    data: str
    created_at: float


class MemoryStore(MemoryResponses):
    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self._sessions: dict[str, Session] = {}
        self._ledgers: dict[str, _Ledger] = {}
        self._calls: dict[str, _Call] = {}
        self._events: list[_Event] = []
        self._last_event = 0
        self._places = itertools.count(1)
        self._revisions = itertools.count(1)

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        if url != "memory://":
            raise ValueError(f"store URL {url!r}: what fits is memory://, with nothing behind it")
        return cls(ttl=ttl, clock=clock)

    def _ledger(self, session: str) -> _Ledger:
        """The session's ledger, to be read."""
        return self._ledgers.get(session) or _Ledger()

    def _changed(self, ledger: _Ledger) -> None:
        ledger.revision = next(self._revisions) if ledger.turns else 0

    def _record(self, *events: tuple[str, str, str]) -> None:
        """Events as (session, type, data), in order, all at one time."""
        now = self.clock()
        written = []
        for session, kind, data in events:
            self._last_event += 1
            self._events.append(_Event(self._last_event, session, kind, data, now))
            written.append((self._last_event, session))
        self._waiters.wake(written)

    # --- sessions ---------------------------------------------------------------------------------------------

    async def session(self, name: str) -> Session | None:
        self._check_open()
        return self._sessions.get(name)

    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        self._check_open()
        rules.check_limit(limit)
        after = rules.name_after(cursor)
        names = sorted(name for name in self._sessions if name > after)
        return rules.page_of([(name, self._sessions[name]) for name in names[: limit + 1]], "session.", limit)

    async def put_policy(self, name: str, policy: Policy) -> Session:
        return self._put_session(name, "session.updated", {"policy": policy})

    async def put_toolset(self, name: str, toolset: Toolset | None) -> Session:
        return self._put_session(name, "tools.updated", {"toolset": toolset})

    def _put_session(self, name: str, kind: str, changes: dict[str, Any]) -> Session:
        self._check_open()
        session = rules.changed(self._sessions.get(name), name, changes, now=self.clock())
        self._sessions[name] = kept = Session.model_validate_json(session.model_dump_json())
        self._record((name, kind, kept.masked().model_dump_json()))
        return kept

    async def delete_session(self, name: str) -> bool:
        self._check_open()
        ledger = self._ledgers.pop(name, None)
        gone = [self._sessions.pop(name, None), ledger, self._responses.pop(name, None)]
        if all(one is None for one in gone):
            return False
        if ledger:
            for entry in ledger.turns.values():
                for call_id in entry.calls:
                    del self._calls[call_id]
        self._events = [event for event in self._events if event.session != name]
        self._record((name, "session.deleted", rules.json_text({"name": name})))
        return True

    async def put_cached_tools(self, cached: CachedTools) -> None:
        self._check_open()
        kept = CachedTools.model_validate_json(cached.model_dump_json())
        self._ledgers.setdefault(cached.session, _Ledger()).cached[cached.cached_content] = kept

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        self._check_open()
        return self._ledger(session).cached.get(cached_content)

    # --- the ledger -------------------------------------------------------------------------------------------

    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        self._check_open()
        rules.check_calls(turn, calls)
        ledger = self._ledger(turn.session)
        entry = ledger.turns.get(turn.turn_id)
        turn = rules.replaced(entry.turn if entry else None, turn)
        data = turn.model_dump_json()
        fresh = {call.call_id: call.model_dump_json() for call in calls if call.call_id not in self._calls}
        kept = Turn.model_validate_json(data)

        self._ledgers[turn.session] = ledger
        if entry is None:
            entry = ledger.turns[turn.turn_id] = _Turn(next(self._places), kept)
            events = [(turn.session, "turn.created", data)]
        else:
            entry.turn = kept
            events = [(turn.session, "turn.updated", data)]
        ledger.add_keys(entry, keys)
        for call_id, call_data in fresh.items():
            call = Call.model_validate_json(call_data)
            self._calls[call_id] = _Call(next(self._places), call)
            entry.calls.append(call_id)
            if not call.status.final:
                ledger.open[call_id] = None
            events.append((turn.session, "call.created", call_data))
        self._changed(ledger)
        self._record(*events)

    async def look_up(self, session: str, *, turn_ids: Collection[str] = (), keys: Collection[bytes] = ()) -> Found:
        self._check_open()
        ledger = self._ledger(session)
        found = Found()
        wanted = [ledger.turns[turn_id] for turn_id in turn_ids if turn_id in ledger.turns]
        for key in keys:
            if entries := ledger.by_key.get(key):
                best = sorted(entries.values(), key=lambda e: (e.turn.delivered, e.place), reverse=True)[:MATCHES]
                found.by_key[key] = [entry.turn.turn_id for entry in best]
                wanted += best
        for entry in wanted:
            found.turns[entry.turn.turn_id] = entry.turn
            for call_id in entry.calls:
                found.calls[call_id] = self._calls[call_id].call
        return found

    async def bind(
        self, session: str, user_key: bytes, keys: Sequence[bytes], *, exclude: Collection[str] = ()
    ) -> str | None:
        self._check_open()
        ledger = self._ledger(session)
        unbound = [
            entry
            for turn_id, entry in ledger.turns.items()
            if entry.turn.user_key == user_key and not entry.turn.bound and turn_id not in exclude
        ]
        if not unbound:
            return None
        entry = max(unbound, key=attrgetter("place"))
        entry.turn = entry.turn.model_copy(update={"bound": True})
        ledger.add_keys(entry, keys)
        self._changed(ledger)
        self._record((session, "turn.updated", entry.turn.model_dump_json()))
        return entry.turn.turn_id

    def revision(self, session: str) -> int | None:
        self._check_open()
        return self._ledger(session).revision

    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        self._check_open()
        rules.check_limit(limit)
        after = rules.place("turn", cursor)
        rows = ((e.place, e.turn) for e in self._ledger(session).turns.values() if e.place > after)
        return rules.page_of(list(itertools.islice(rows, limit + 1)), "turn", limit)

    # --- calls ------------------------------------------------------------------------------------------------

    async def call(self, call_id: str) -> Call:
        self._check_open()
        if call_id not in self._calls:
            raise UnknownCall(f"there is no call {call_id}")
        return self._calls[call_id].call

    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        self._check_open()
        rules.check_limit(limit)
        after = rules.place("call", cursor)
        rows = (
            (place, call)
            for place, call in self._calls.values()
            if place > after
            and session in (None, call.session)
            and status in (None, call.status)
            and name in (None, call.name)
        )
        return rules.page_of(list(itertools.islice(rows, limit + 1)), "call", limit)

    async def answer(
        self, call_id: str, *, result: Any = None, error: str | None = None, session: str | None = None
    ) -> tuple[Call, bool]:
        call = await self.call(call_id)
        if session not in (None, call.session):
            raise UnknownCall(f"there is no call {call_id} in session {session}")
        answer = states.answered(call, result=result, error=error, now=self.clock())
        return self._put_call(answer) or call, answer is not None

    def _put_call[C: (Call, Call | None)](self, call: C, *, quietly: bool = False) -> C:
        """Replace the call of the same id, if there is one to replace it; `quietly`: without an event."""
        if call is None:
            return call
        data = call.model_dump_json()
        ledger = self._ledgers[call.session]
        self._calls[call.call_id] = self._calls[call.call_id]._replace(call=call)
        if call.status.final:
            ledger.open.pop(call.call_id, None)
        self._changed(ledger)
        if not quietly:
            self._record((call.session, "call.updated", data))
        return call

    # --- running calls ----------------------------------------------------------------------------------------

    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        self._check_open()
        states.check_lease(lease)
        now = self.clock()
        held = states.held(self._sessions.get(session))
        for call in self._open_calls(session, names):
            if states.is_free(call, held=held, now=now):
                return self._put_call(states.claimed(call, lease=lease, worker=worker, now=now))
        return None

    def _open_calls(self, session: str, names: Collection[str]) -> Iterable[Call]:
        found = (self._calls[call_id].call for call_id in self._ledger(session).open)
        return (call for call in found if call.name in names)

    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        self._check_open()
        ends = (call.lease_until for call in self._open_calls(session, names))
        return min((end for end in ends if end is not None), default=None)

    async def renew(self, call_id: str, worker: str, lease: float) -> Call:
        call = states.renewed(await self.call(call_id), worker=worker, lease=lease, now=self.clock())
        return self._put_call(call, quietly=lease > 0)

    async def start(self, call_id: str, *, loop_id: str) -> Call:
        call = await self.call(call_id)
        return self._put_call(states.started(call, loop_id=loop_id, now=self.clock())) or call

    async def ask_approval(self, call_id: str, loop_id: str) -> Call:
        call = await self.call(call_id)
        return self._put_call(states.asked(call, loop_id=loop_id, now=self.clock())) or call

    async def decide(self, call_id: str, approved: bool, *, reason: str = "") -> Call:
        call = await self.call(call_id)
        return self._put_call(states.decided(call, approved=approved, reason=reason, now=self.clock())) or call

    async def settle(self, call_id: str, status: Status, *, error: str) -> Call:
        call = await self.call(call_id)
        return self._put_call(states.settled(call, status=status, error=error, now=self.clock())) or call

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> int:
        self._check_open()
        return self._last_event

    def _events_after(self, after: int, session: str | None) -> Iterable[_Event]:
        first = bisect.bisect_right(self._events, after, key=attrgetter("event_id"))
        later = itertools.islice(self._events, first, None)
        return (event for event in later if session in (None, event.session))

    async def events(self, *, after: int, session: str | None = None, limit: int = 100) -> list[Event]:
        self._check_open()
        rules.check_limit(limit)
        return [
            Event(**{**event._asdict(), "data": pydantic_core.from_json(event.data)})
            for event in itertools.islice(self._events_after(after, session), limit)
        ]

    async def wait(self, *, after: int, timeout: float, session: str | None = None) -> bool:
        if not self._is_open:
            return False
        if any(True for _ in self._events_after(after, session)):
            return True
        return await self._waiters.wait(after=after, session=session, timeout=timeout)

    # --- upkeep -----------------------------------------------------------------------------------------------

    async def expire(self) -> int:
        self._check_open()
        horizon = self.clock() - self.ttl
        gone = self._expire_responses(horizon)
        for name, ledger in list(self._ledgers.items()):
            old_turns = [entry for entry in ledger.turns.values() if entry.turn.created_at < horizon]
            for entry in old_turns:
                ledger.drop(entry)
                for call_id in entry.calls:
                    del self._calls[call_id]
                gone += 1 + len(entry.calls)
            if old_turns:
                self._changed(ledger)
            for cached in [c for c in ledger.cached.values() if c.created_at < horizon]:
                del ledger.cached[cached.cached_content]
                gone += 1
            if not ledger.turns and not ledger.cached:
                del self._ledgers[name]
        events = [event for event in self._events if event.created_at >= horizon]
        gone += len(self._events) - len(events)
        self._events = events
        return gone
