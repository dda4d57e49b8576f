"""Waiting in a store that one process writes and that never suspends: looked first, and then woken by the write.

Nothing can be written between the look and the wait, since both are one step of the event loop. A mixin: the backends
are made of it, and call `_wake` for what they have written.
"""

import abc
import asyncio
from collections.abc import Collection, Iterable

from store.backends import _states as states
from store.backends._waiters import Key, Waiters
from store.base import Store, StoreUnavailable
from store.models import Call, Event

ANY = None
"""In the place of a session: whichever."""


class Waits(Store):
    _waiters: Waiters

    @abc.abstractmethod
    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        """Whether a claim of these tools would give a call, or settle one."""

    def _wake(self, sessions: Collection[str], calls: Iterable[Call], changed: Iterable[str] = ()) -> None:
        """Wake those whom a write concerns. `sessions` have new events, `calls` are as they were written, and of the
        `changed` sessions calls are gone, or the tools are others."""
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
            raise StoreUnavailable("the store was opened read-only, where nothing tells of what others write")

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
            left = deadline - clock()
            lease = await self.next_lease(session, names)
            is_last = lease is None or lease >= left
            if not await self._waiters.wait(keys, left if lease is None else min(left, lease)) and is_last:
                return False
        return True

    async def follow(self, session: str | None, after: str | None, timeout: float, *, limit: int = 100) -> list[Event]:
        deadline = asyncio.get_running_loop().time() + timeout
        while not (events := await self.events(after=after, session=session, limit=limit)):
            self._check_waiting()
            if not await self._waiters.wait([("events", session)], deadline - asyncio.get_running_loop().time()):
                return []
        return events
