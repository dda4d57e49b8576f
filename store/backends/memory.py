"""The store in this process's memory: nothing outlives the process, and no other process sees it.

Every method runs from its start to its end without a suspension, which is what makes it atomic. Records are kept as
private copies: what a caller does to its own dict afterwards changes nothing here.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Self

import pydantic_core

from store.backends import _rules as rules
from store.backends._memory_base import KeptEvent, Ledger
from store.backends._memory_calls import MemoryCalls
from store.backends._memory_ledger import MemoryLedger
from store.backends._memory_responses import MemoryResponses
from store.models import CachedTools, Event, Page, Policy, Session, Toolset


class MemoryStore(MemoryLedger, MemoryCalls, MemoryResponses):
    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        if url != "memory://":
            raise ValueError(f"store URL {url!r}: what fits is memory://, with nothing behind it")
        return cls(ttl=ttl, clock=clock)

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
        self._ledgers.setdefault(cached.session, Ledger()).cached[cached.cached_content] = kept

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        self._check_open()
        return self._ledger(session).cached.get(cached_content)

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> int:
        self._check_open()
        return self._last_event

    def _events_after(self, after: int, session: str | None) -> Iterable[KeptEvent]:
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
