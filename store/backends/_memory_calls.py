"""Calls in memory: read, answered, run. A mixin of `MemoryStore`."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._memory_base import MemoryBase
from store.models import Call, Document, Page, Status


class MemoryCalls(MemoryBase):
    async def call(self, session: str, call_id: str) -> Call:
        self._check_open()
        stored = self._calls.get(call_id)
        if stored is None or stored.call.session != session:
            raise rules.unknown_call(call_id, session)
        return stored.call

    async def find_call(self, call_id: str) -> Call:
        self._check_open()
        if call_id not in self._calls:
            raise rules.unknown_call(call_id)
        return self._calls[call_id].call

    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        self._check_open()
        rules.check_limit(limit)
        after = rules.place("call", cursor, rules.LAST_PLACE if newest_first else 0)
        saved = self._calls.values()
        rows = (
            (place, call)
            for place, call in (reversed(saved) if newest_first else saved)
            if (place < after if newest_first else place > after)
            and session in (None, call.session)
            and status in (None, call.status)
            and name in (None, call.name)
        )
        return rules.page_of(list(itertools.islice(rows, limit + 1)), "call", limit)

    async def calls_cursor(
        self, moment: float, *, session: str | None = None, newest_first: bool = False
    ) -> str | None:
        self._check_open()
        found = (place for place, call in reversed(self._calls.values()) if call.created_at < moment)
        before = next(found, 0)
        return rules.cursor_of("call", before + 1 if newest_first else before)

    async def answer(
        self,
        session: str,
        call_id: str,
        *,
        result: Any = None,
        error: str | None = None,
        parts: Sequence[Document] = (),
    ) -> tuple[Call, bool]:
        call = await self.call(session, call_id)
        answer = states.answered(call, result=result, error=error, now=self._clocks.now(), parts=parts)
        return self._put_call(answer) or call, answer is not None

    def _put_call[C: (Call, Call | None)](self, call: C, *, quietly: bool = False) -> C:
        """Replace the call of the same id, unless `call` is None. `quietly`: without an event."""
        if call is None:
            return call
        data = call.model_dump_json()
        ledger = self._ledgers[call.session]
        self._calls[call.call_id] = self._calls[call.call_id]._replace(call=call)
        if call.status.final:
            ledger.open.pop(call.call_id, None)
        self._changed(ledger, [call.turn_id])
        self._record(*() if quietly else [(call.session, "call.updated", data)], calls=[call])
        return call

    # --- running calls ----------------------------------------------------------------------------------------

    async def release(self, session: str, call_id: str, *, detached: bool = False) -> Call:
        call = await self.call(session, call_id)
        return self._put_call(states.released(call, detached=detached, now=self._clocks.now())) or call

    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        self._check_open()
        states.check_lease(lease)
        now = self._clocks.now()
        guarded = states.approval_required(self._sessions.get(session))
        for call in list(self._open_calls(session, names)):
            if not states.is_claimable(call, approval_required=guarded, steady=now.steady):
                continue
            if self._put_call(states.lost(call, proxies=self._proxies(now.steady), now=now)) is None:
                return self._put_call(states.claimed(call, lease=lease, worker=worker, now=now))
        return None

    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        self._check_open()
        guarded, now = states.approval_required(self._sessions.get(session)), self._clocks.now()
        return any(
            states.is_claimable(call, approval_required=guarded, steady=now.steady)
            for call in self._open_calls(session, names)
        )

    def _open_calls(self, session: str, names: Collection[str]) -> Iterable[Call]:
        found = (self._calls[call_id].call for call_id in self._ledger(session).open)
        return (call for call in found if call.name in names)

    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        self._check_open()
        steady = self._clocks.steady()
        remaining = (states.lease_left(call, steady=steady) for call in self._open_calls(session, names))
        return min((seconds for seconds in remaining if seconds is not None), default=None)

    async def lease_left(self, session: str, call_id: str) -> float | None:
        return states.lease_left(await self.call(session, call_id), steady=self._clocks.steady())

    async def renew(self, session: str, call_id: str, worker: str, lease: float) -> Call:
        call = states.renewed(await self.call(session, call_id), worker=worker, lease=lease, now=self._clocks.now())
        return self._put_call(call, quietly=lease > 0)

    async def start(self, session: str, call_id: str, *, loop_id: str) -> Call:
        call = await self.call(session, call_id)
        return self._put_call(states.started(call, loop_id=loop_id, now=self._clocks.now())) or call

    async def ask_approval(self, session: str, call_id: str, *, loop_id: str) -> Call:
        call = await self.call(session, call_id)
        return self._put_call(states.awaiting_approval(call, loop_id=loop_id, now=self._clocks.now())) or call

    async def decide(
        self, session: str, call_id: str, approved: bool, *, reason: str = "", args: Document | None = None
    ) -> Call:
        call, now = await self.call(session, call_id), self._clocks.now()
        after = states.decided(
            call, approved=approved, reason=reason, args=args, proxies=self._proxies(now.steady), now=now
        )
        return states.check_decided(self._put_call(after)) if after else call

    async def settle(self, session: str, call_id: str, status: Status, *, error: str, has_begun: bool = True) -> Call:
        call, now = await self.call(session, call_id), self._clocks.now()
        settled = states.settled(call, status=status, error=error, has_begun=has_begun, now=now)
        return self._put_call(settled) or call

    # --- the proxies ------------------------------------------------------------------------------------------

    def _proxies(self, steady: float) -> set[str]:
        """The proxies that have a lease."""
        return {proxy_id for proxy_id, until in self._leases.items() if until > steady}

    async def hold(self, proxy_id: str, lease: float) -> None:
        self._check_open()
        states.check_lease(lease)
        self._last_alive[proxy_id] = self._clocks.steady()
        self._leases[proxy_id] = self._last_alive[proxy_id] + lease

    async def drop(self, proxy_id: str) -> list[Call]:
        self._check_open()
        if self._leases.pop(proxy_id, None) is not None:
            self._last_alive[proxy_id] = self._clocks.steady()
        return self._settle_lost(proxy_id)

    async def settle_lost(self) -> list[Call]:
        self._check_open()
        return self._settle_lost()

    def _settle_lost(self, proxy_id: str | None = None) -> list[Call]:
        """`proxy_id`: only the calls of this proxy."""
        now = self._clocks.now()
        proxies = self._proxies(now.steady)
        found = [self._calls[call_id].call for ledger in self._ledgers.values() for call_id in ledger.open]
        settled = [states.lost(call, proxies=proxies, now=now) for call in found if proxy_id in (None, call.proxy_id)]
        return [self._put_call(call) for call in settled if call is not None]
