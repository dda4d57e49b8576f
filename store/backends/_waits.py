"""Waiting in a store with one writing process that never suspends: reads first, and is then woken by a write.

No write can happen between the read and the wait, since both are one step of the event loop. A mixin of the backends,
which call `_wake` after each write.
"""

import abc
import asyncio
from collections.abc import Collection, Iterable

from store.backends import _states as states
from store.backends._waiters import Key, Waiters
from store.base import Store, StoreUnavailable
from store.models import Call, Event

ANY = None
"""Instead of a session: any session."""


class Waits(Store):
    _waiters: Waiters

    @abc.abstractmethod
    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        """Whether a claim of these tools would return a call, or settle one."""

    def _wake(self, sessions: Collection[str], calls: Iterable[Call], changed: Iterable[str] = ()) -> None:
        """Wake the waiters that a write concerns. `sessions`: with new events. `calls`: the written calls. `changed`:
        sessions with deleted calls or changed tools."""
        keys: list[Key] = [("events", ANY)] if sessions else []
        keys += (("events", session) for session in sessions)
        keys += (("session", session) for session in changed)
        for call in calls:
            keys.append(("call", call.call_id))
            if states.claimable_at(call) is not None:
                keys.append(("claim", call.session, call.name))
        self._waiters.wake(keys)

    def _check_waiting(self) -> None:
        if self.read_only:
            raise StoreUnavailable("the store was opened read-only, and is not notified of other processes' writes")

    async def wait_call(self, call: Call, timeout: float) -> Call | None:
        deadline = asyncio.get_running_loop().time() + timeout
        keys = ("call", call.call_id), ("session", call.session)
        while (now := await self.call(call.session, call.call_id)) == call:
            self._check_waiting()
            if not await self._waiters.wait(keys, deadline - asyncio.get_running_loop().time()):
                return None
        return now

    async def wait_claimable(self, session: str, names: Collection[str], timeout: float) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        keys = [("session", session), *(("claim", session, name) for name in names)]
        while not await self._is_claimable(session, names):
            self._check_waiting()
            remaining = deadline - clock()
            lease = await self.next_lease(session, names)
            is_last = lease is None or lease >= remaining
            if not await self._waiters.wait(keys, remaining if lease is None else min(remaining, lease)) and is_last:
                return False
        return True

    async def follow(self, session: str | None, after: str | None, timeout: float, *, limit: int = 100) -> list[Event]:
        deadline = asyncio.get_running_loop().time() + timeout
        while not (events := await self.events(after=after, session=session, limit=limit)):
            self._check_waiting()
            if not await self._waiters.wait([("events", session)], deadline - asyncio.get_running_loop().time()):
                return []
        return events
