"""Methods that all backends have in common: those that change one call by a rule, or replace a part of a session."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._clocks import Now
from store.backends._waits import Waits
from store.models import Call, Document, Policy, Session, Status, Toolset, Turn

type Change = Callable[[Call, Now, Callable[[], set[str]]], Call | None]
"""A function from a call, the times and a getter of the proxies with a lease to the changed call; None: unchanged."""


class SharedMethods(Waits):
    @abc.abstractmethod
    async def _change(self, session: str, call_id: str, change: Change, *, quietly: bool = False) -> tuple[Call, bool]:
        """Change a call. Returns the current call, and whether it changed. `quietly`: without an event."""

    @abc.abstractmethod
    async def _put_session(self, name: str, kind: str, changes: dict[str, Any], if_version: int | None) -> Session:
        """Change these fields of a session, with an event of this kind."""

    @abc.abstractmethod
    async def _mark(self, session: str, turn_id: str, change: Callable[[Turn, float], Turn | None]) -> bool:
        """Replace a turn by the result of `change(turn, now)`. False: no such turn, or nothing changes."""

    async def put_policy(self, name: str, policy: Policy, *, if_version: int | None = None) -> Session:
        return await self._put_session(name, "session.updated", {"policy": policy}, if_version)

    async def put_toolset(self, name: str, toolset: Toolset | None, *, if_version: int | None = None) -> Session:
        return await self._put_session(name, "tools.updated", {"toolset": toolset}, if_version)

    async def calls_cursor(
        self, moment: float, *, session: str | None = None, newest_first: bool = False
    ) -> str | None:
        return await rules.calls_cursor(self, moment, session, newest_first)

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
