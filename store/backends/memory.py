"""The store in this process's memory: nothing outlives the process, and no other process sees it.

Methods are atomic because they never suspend. Records are private copies: later changes by callers to their own dicts
have no effect.
"""

import bisect
import itertools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Self

import pydantic_core

from store.backends import _rules as rules
from store.backends._memory_base import Ledger
from store.backends._memory_ledger import MemoryLedger
from store.backends._memory_responses import MemoryResponses
from store.backends._memory_retries import MemoryRetries, forget_request
from store.base import BATCH
from store.models import CachedTools, Event, Page, Policy, Session, Snapshot, Toolset


class MemoryStore(MemoryLedger, MemoryResponses, MemoryRetries):
    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        if url != "memory://":
            raise ValueError("use memory://, with nothing after it")
        return cls(ttl=ttl, clock=clock)

    # --- sessions ---------------------------------------------------------------------------------------------

    async def snapshot(self, session: str) -> Snapshot:
        self._check_open()
        record = self._sessions.get(session)
        return Snapshot(record, record.version if record else -self._deleted.of(session), self.revision(session))

    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        self._check_open()
        rules.check_limit(limit)
        after = rules.name_after(cursor)
        names = sorted(name for name in self._sessions if name > after)
        return rules.page_of([(name, self._sessions[name]) for name in names[: limit + 1]], "session.", limit)

    async def put_policy(self, name: str, policy: Policy, *, if_version: int | None = None) -> Session:
        return self._put_session(name, "session.updated", {"policy": policy}, if_version)

    async def put_toolset(self, name: str, toolset: Toolset | None, *, if_version: int | None = None) -> Session:
        return self._put_session(name, "tools.updated", {"toolset": toolset}, if_version)

    def _put_session(self, name: str, kind: str, changes: dict[str, Any], if_version: int | None) -> Session:
        self._check_open()
        old = self._sessions.get(name)
        rules.check_version(old, name, if_version)
        session = rules.changed(old, name, changes, version=self._last_event + 1, now=self.clock())
        self._sessions[name] = stored = Session.model_validate_json(session.model_dump_json())
        self._record((name, kind, stored.masked().model_dump_json()), changed=[name] if "toolset" in changes else [])
        return stored

    async def delete_session(self, name: str, *, if_version: int | None = None) -> bool:
        self._check_open()
        rules.check_version(self._sessions.get(name), name, if_version)
        ledger = self._ledgers.pop(name, None)
        deleted = [self._sessions.pop(name, None), ledger, self._responses.pop(name, None)]
        if all(removed is None for removed in deleted):
            return False
        self._unsent = {key: answer for key, answer in self._unsent.items() if key[0] != name}
        if ledger:
            for entry in ledger.turns.values():
                for call_id in entry.calls:
                    del self._calls[call_id]
        self._keep_events([event for event in self._events if event.session != name])
        self._record((name, "session.deleted", rules.json_text({"name": name})), changed=[name])
        self._deleted.note(name, self._last_event)
        return True

    async def put_cached_tools(self, cached: CachedTools) -> None:
        self._check_open()
        stored = CachedTools.model_validate_json(cached.model_dump_json())
        self._ledgers.setdefault(cached.session, Ledger()).cached[cached.cached_content] = stored

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        self._check_open()
        return self._ledger(session).cached.get(cached_content)

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> str:
        self._check_open()
        return rules.event_id(self.epoch, self._last_event)

    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        self._check_open()
        rules.check_limit(limit)
        number = rules.event_after(after, self.epoch, self._last_event, self._lost_event)
        first = bisect.bisect_right(self._events, number, key=attrgetter("number"))
        later = (event for event in itertools.islice(self._events, first, None) if session in (None, event.session))
        return [
            Event(
                event_id=rules.event_id(self.epoch, event.number),
                session=event.session,
                type=event.type,
                data=pydantic_core.from_json(event.data),
                created_at=event.created_at,
            )
            for event in itertools.islice(later, limit)
        ]

    # --- upkeep -----------------------------------------------------------------------------------------------

    async def expire(self) -> int:
        self._check_open()
        if self._clocks.check():
            return 0
        horizon = self.clock() - self.ttl
        deleted = self._expire_responses(horizon)
        for name, ledger in list(self._ledgers.items()):
            old = (entry for entry in ledger.turns.values() if entry.turn.created_at < horizon)
            old_turns = list(itertools.islice(old, BATCH))
            for entry in old_turns:
                ledger.drop(entry)
                ledger.plain |= dict.fromkeys(entry.keys, (self.clock(), b""))
                forget_request(ledger, entry)
                for call_id in entry.calls:
                    del self._calls[call_id]
                deleted += 1 + len(entry.calls)
            if old_turns:
                self._changed(ledger)
                self._wake((), (), [name])
            for cached in [c for c in ledger.cached.values() if c.created_at < horizon]:
                del ledger.cached[cached.cached_content]
                deleted += 1
            deleted += self._expire_plain(ledger, horizon)
            if not ledger.turns and not ledger.cached and not ledger.plain:
                del self._ledgers[name]
        self._last_alive = {
            proxy_id: at for proxy_id, at in self._last_alive.items() if at >= horizon or proxy_id in self._leases
        }
        old_events = itertools.takewhile(lambda event: event.created_at < horizon, self._events)
        number = sum(1 for _ in itertools.islice(old_events, 2 * BATCH))
        if number:
            self._lost_event = self._events[number - 1].number
            self._keep_events(self._events[number:])
        return deleted + number
