"""Waits for results and approvals that workers and people give."""

import asyncio
import math
from collections.abc import Callable

from store.base import Store
from store.models import Call, Status

_MAX_WORKERS = 4  # workers that may claim a call, one after another
_TAKEOVER = 1.0  # seconds for another worker to claim a call whose lease expired
_LONG = 3600.0  # seconds of one wait without a time limit


class CallWaits:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def final_call(self, session: str, call_id: str, timeout: float = math.inf) -> Call | None:
        """The call once it is final; None after `timeout` seconds."""
        return await self._until(session, call_id, timeout, lambda call: call.status.final)

    async def decision(self, session: str, call_id: str, timeout: float) -> Call | None:
        """The call once it no longer waits for an approval; None after `timeout` seconds."""
        return await self._until(
            session, call_id, timeout, lambda call: call.status.final or call.approval != "waiting"
        )

    async def final_call_of_worker(self, session: str, call_id: str, seconds: float, *, claim_timeout: float) -> Call:
        """The call once it has a result; the open call if the time runs out.

        A worker must claim the call within `claim_timeout` seconds, and give its result within another `seconds`. A
        call whose worker is lost fails, unless it may be redelivered: then the time starts again with the next worker,
        for up to _MAX_WORKERS workers. If the time runs out before the lease of a silent worker does, such a call waits
        until the lease ends, plus _TAKEOVER for another worker.
        """
        clock = asyncio.get_running_loop().time
        worker: str | None = None
        lease: float | None = None  # the end of the worker's first lease, until it is renewed
        workers, deadline = 0, clock() + claim_timeout
        call = await self.store.call(session, call_id)
        while not call.status.final:
            if _has_worker(call) and call.worker != worker and workers < _MAX_WORKERS:
                worker, lease, workers, deadline = call.worker, call.lease_until, workers + 1, clock() + seconds
            lease_left = await self.store.lease_left(session, call_id) if _has_worker(call) else None
            remaining = deadline - clock()
            if remaining <= 0 and lease is not None and call.lease_until == lease and call.redeliver:
                remaining = min(lease_left or 0, seconds) + _TAKEOVER
                lease, deadline = None, clock() + remaining
            if remaining <= 0:
                return call
            if lease_left == 0 and not call.redeliver:
                await self.store.settle_lost()
            changed = await self.store.wait_call(call, min(remaining, lease_left or remaining, _LONG))
            call = changed or await self.store.call(session, call_id)
        return call

    async def _until(
        self, session: str, call_id: str, timeout: float, condition: Callable[[Call], bool]
    ) -> Call | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        call = await self.store.call(session, call_id)
        while not condition(call):
            remaining = deadline - clock()
            if remaining <= 0:
                return None
            call = await self.store.wait_call(call, min(remaining, _LONG)) or call
        return call


def _has_worker(call: Call) -> bool:
    return call.status is Status.RUNNING and call.lease_until is not None
