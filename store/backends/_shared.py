"""Methods that all backends have in common: waiting, and changes of one session, call or turn by a rule."""

import abc
import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._clocks import Now
from store.backends._notifier import Notifier
from store.base import Store
from store.models import Call, Document, Event, Policy, Session, Status, Toolset, Turn

type Change = Callable[[Call, Now, Callable[[], set[str]]], Call | None]
"""A function from a call, the times and a getter of the proxies with a lease to the changed call; None: unchanged."""


class SharedMethods(Store):
    notifier: Notifier

    @abc.abstractmethod
    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        """Whether a claim of these tools would return or settle a call."""

    @abc.abstractmethod
    async def _change(self, session: str, call_id: str, change: Change, *, quietly: bool = False) -> tuple[Call, bool]:
        """Change a call. Returns the current call, and whether it changed. `quietly`: without an event."""

    @abc.abstractmethod
    async def _put_session(self, name: str, kind: str, changes: dict[str, Any], if_version: int | None) -> Session:
        """Change these fields of a session, with an event of this kind."""

    @abc.abstractmethod
    async def _mark(self, session: str, turn_id: str, change: Callable[[Turn, float], Turn | None]) -> bool:
        """Replace a turn by the result of `change(turn, now)`. False: no such turn, or nothing changes."""

    # --- waiting ----------------------------------------------------------------------------------------------

    async def wait_call(self, call: Call, timeout: float) -> Call | None:
        async def look() -> Call | None:
            now = await self.call(call.session, call.call_id)
            return now if now != call else None

        return await self.notifier.wait([("call", call.call_id), ("session", call.session)], timeout, look)

    async def wait_claimable(self, session: str, names: Collection[str], timeout: float) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout

        async def look() -> bool | None:
            return True if await self._is_claimable(session, names) else None

        keys = [("session", session), *(("claim", session, name) for name in names)]
        while True:
            remaining = max(deadline - clock(), 0.0)
            lease = await self.next_lease(session, names) if remaining else None
            part = remaining if lease is None else min(remaining, lease)
            if await self.notifier.wait(keys, part, look):
                return True
            if part >= remaining or not self.notifier.is_open:
                return False

    async def follow(self, session: str | None, after: str | None, timeout: float, *, limit: int = 100) -> list[Event]:
        async def look() -> list[Event] | None:
            return await self.events(after=after, session=session, limit=limit) or None

        return await self.notifier.wait([("events", session)], timeout, look) or []

    # --- sessions, calls and turns ----------------------------------------------------------------------------

    async def put_policy(self, name: str, policy: Policy, *, if_version: int | None = None) -> Session:
        return await self._put_session(name, "session.updated", {"policy": policy}, if_version)

    async def put_toolset(self, name: str, toolset: Toolset | None, *, if_version: int | None = None) -> Session:
        return await self._put_session(name, "tools.updated", {"toolset": toolset}, if_version)

    async def calls_cursor(
        self, moment: float, *, session: str | None = None, newest_first: bool = False
    ) -> str | None:
        newest = await self.calls(session=session, newest_first=True, limit=1)
        if newest.next_cursor is None:  # one call at most
            is_before = bool(newest.items) and newest.items[0].created_at < moment
            end = 0 if newest_first else rules.LAST_PLACE
            return None if is_before == newest_first else rules.cursor_of("call", end)
        # Bisect the places.
        before, behind = 0, rules.place("call", newest.next_cursor)
        if newest.items and newest.items[0].created_at < moment:
            before = behind
        while behind - before > 1:
            middle = (before + behind) // 2
            found = (await self.calls(session=session, limit=1, cursor=rules.cursor_of("call", middle - 1))).items
            if found and found[0].created_at < moment:
                before = middle
            else:
                behind = middle
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
        def change(call: Call, now: Now, _: object) -> Call | None:
            return states.answered(call, result=result, error=error, now=now, parts=parts)

        return await self._change(session, call_id, change)

    async def release(self, session: str, call_id: str, *, detached: bool = False) -> Call:
        def change(call: Call, now: Now, _: object) -> Call | None:
            return states.released(call, detached=detached, now=now)

        return (await self._change(session, call_id, change))[0]

    async def renew(self, session: str, call_id: str, worker: str, lease: float) -> Call:
        def change(call: Call, now: Now, _: object) -> Call | None:
            return states.renewed(call, worker=worker, lease=lease, now=now)

        return (await self._change(session, call_id, change, quietly=lease > 0))[0]

    async def start(self, session: str, call_id: str, *, loop_id: str) -> Call:
        def change(call: Call, now: Now, _: object) -> Call | None:
            return states.started(call, loop_id=loop_id, now=now)

        return (await self._change(session, call_id, change))[0]

    async def decide(
        self, session: str, call_id: str, approved: bool, *, reason: str = "", args: Document | None = None
    ) -> Call:
        def change(call: Call, now: Now, proxies: Callable[[], set[str]]) -> Call | None:
            return states.decided(call, approved=approved, reason=reason, args=args, proxies=proxies(), now=now)

        return states.check_decided((await self._change(session, call_id, change))[0])

    async def settle(self, session: str, call_id: str, status: Status, *, error: str, has_begun: bool = True) -> Call:
        def change(call: Call, now: Now, _: object) -> Call | None:
            return states.settled(call, status=status, error=error, has_begun=has_begun, now=now)

        return (await self._change(session, call_id, change))[0]

    async def mark_broken_off(self, session: str, turn_id: str, *, proxy_id: str | None = None) -> bool:
        return await self._mark(session, turn_id, lambda turn, steady: rules.broken_off(turn, proxy_id, steady=steady))

    async def mark_delivered(self, session: str, turn_id: str) -> bool:
        return await self._mark(session, turn_id, lambda turn, steady: rules.delivered(turn))
