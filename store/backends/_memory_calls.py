"""Calls in memory: read, answered, run. A mixin: `MemoryStore` is made of it."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._memory_base import MemoryBase
from store.base import UnknownCall
from store.models import Call, Page, Status


class MemoryCalls(MemoryBase):
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
