"""Waits for what others do to a call: the answer of a worker or a human, and a decision. Times are the store's."""

import asyncio
import math
from collections.abc import Callable

from store.base import Store
from store.models import Call, Status

_WORKERS = 4  # that may take a call, one after the other
_TAKEOVER = 1.0  # seconds in which another worker takes a call whose lease is out
_LONG = 3600.0  # seconds of one wait that has no end


class CallWaits:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def answer(self, session: str, call_id: str, timeout: float = math.inf) -> Call | None:
        """The call when it has an answer; None after `timeout` seconds."""
        return await self._until(session, call_id, timeout, lambda call: call.status.final)

    async def decision(self, session: str, call_id: str, timeout: float) -> Call | None:
        """The call when it waits for an approval no longer; None after `timeout` seconds."""
        return await self._until(
            session, call_id, timeout, lambda call: call.status.final or call.approval != "waiting"
        )

    async def workers_answer(self, session: str, call_id: str, seconds: float, *, unclaimed: float) -> Call:
        """The call when a worker, or whoever was first, has answered it; as it stands if nobody did in time.

        A worker has to take the call within `unclaimed` seconds, and to answer it `seconds` after that. A call whose
        worker is lost fails, unless it may be delivered again: then the time begins anew with the next worker, up to
        _WORKERS of them. If the time is over before the lease of a worker that gives no sign of life, such a call waits
        for the end of the lease, and a moment for another worker.
        """
        clock = asyncio.get_running_loop().time
        worker: str | None = None
        lease: float | None = None  # as the worker got it, while that is not renewed
        workers, deadline = 0, clock() + unclaimed
        call = await self.store.call(session, call_id)
        while not call.status.final:
            if _has_worker(call) and call.worker != worker and workers < _WORKERS:
                worker, lease, workers, deadline = call.worker, call.lease_until, workers + 1, clock() + seconds
            lease_left = await self.store.lease_left(session, call_id) if _has_worker(call) else None
            left = deadline - clock()
            if left <= 0 and lease is not None and call.lease_until == lease and call.redeliver:
                left = min(lease_left or 0, seconds) + _TAKEOVER
                lease, deadline = None, clock() + left
            if left <= 0:
                return call
            if lease_left == 0 and not call.redeliver:
                await self.store.settle_lost()
            changed = await self.store.wait_call(call, min(left, lease_left or left, _LONG))
            call = changed or await self.store.call(session, call_id)
        return call

    async def _until(self, session: str, call_id: str, timeout: float, fits: Callable[[Call], bool]) -> Call | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        call = await self.store.call(session, call_id)
        while not fits(call):
            left = deadline - clock()
            if left <= 0:
                return None
            call = await self.store.wait_call(call, min(left, _LONG)) or call
        return call


def _has_worker(call: Call) -> bool:
    return call.status is Status.RUNNING and call.lease_until is not None
