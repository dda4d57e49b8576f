"""What becomes of a call, as pure functions that every backend uses: answers, claims, leases, approvals.

Each takes the call as it stands and returns it as it shall be, or None where nothing changes. No storage, no clock.
"""

import math
from typing import Any

from store.backends._rules import plain_json, same_json
from store.base import AlreadyAnswered, Decided, LeaseLost, NotPending
from store.models import Call, Session, Status


def answered(call: Call, *, result: Any, error: str | None, now: float) -> Call | None:
    """The call with its answer. Raises AlreadyAnswered, ValueError."""
    if error is None:
        status, result = Status.DONE, plain_json(result)
    else:
        status, result = Status.FAILED, None
    if call.status.final:
        if call.status is status and call.error == error and same_json(call.result, result):
            return None
        raise AlreadyAnswered(call)
    return _changed(call, now, status=status, result=result, error=error, lease_until=None)


def free_at(call: Call) -> float | None:
    """From when on a worker may have the call; None: not as it stands."""
    if call.status is Status.RUNNING:
        return call.lease_until
    return 0.0 if call.status is Status.PENDING and call.approval in (None, "approved") else None


def held(session: Session | None) -> set[str]:
    """The tools whose calls a worker gets only once they are approved."""
    toolset = session.toolset if session else None
    return {name for name, rules in toolset.rules.items() if rules.approval} if toolset else set()


def is_free(call: Call, *, held: set[str], now: float) -> bool:
    """Whether a worker may have the call now. A running one, whose lease ran out, was let through before."""
    start = free_at(call)
    if start is None or start > now:
        return False
    return call.status is Status.RUNNING or call.approval == "approved" or call.name not in held


def claimed(call: Call, *, lease: float, worker: str, now: float) -> Call:
    return _changed(call, now, status=Status.RUNNING, worker=worker, lease_until=now + lease)


def check_lease(lease: float) -> None:
    if not 0 < lease < math.inf:
        raise ValueError(f"lease is {lease}, and must be above 0")


def renewed(call: Call, *, worker: str, lease: float, now: float) -> Call:
    if call.status is not Status.RUNNING or call.lease_until is None or call.worker != worker:
        raise LeaseLost(call)
    if lease == 0:
        return _changed(call, now, status=Status.PENDING, worker=None, lease_until=None)
    check_lease(lease)
    return _changed(call, now, lease_until=now + lease)


def started(call: Call, *, loop_id: str, now: float) -> Call | None:
    if call.status is Status.RUNNING and call.lease_until is None and call.loop_id == loop_id:
        return None
    if call.status is not Status.PENDING or call.approval in ("waiting", "denied"):
        raise NotPending(call)
    return _changed(call, now, status=Status.RUNNING, loop_id=loop_id)


def asked(call: Call, *, loop_id: str, now: float) -> Call | None:
    if call.approval in ("approved", "denied"):
        raise Decided(call)
    if call.status is not Status.PENDING:
        raise NotPending(call)
    if (call.approval, call.loop_id) == ("waiting", loop_id):
        return None
    return _changed(call, now, approval="waiting", loop_id=loop_id)


def decided(call: Call, *, approved: bool, reason: str, now: float) -> Call | None:
    if call.approval == ("approved" if approved else "denied"):
        return None
    if call.approval != "waiting" or call.status is not Status.PENDING:
        raise Decided(call)
    if approved:
        return _changed(call, now, approval="approved")
    error = f"the call was denied: {reason}" if reason else "the call was denied"
    return _changed(call, now, approval="denied", status=Status.DENIED, error=error)


def settled(call: Call, *, status: Status, error: str, now: float) -> Call | None:
    if status not in (Status.DENIED, Status.EXPIRED):
        raise ValueError(f"a call is settled as denied or expired, not as {status}")
    return None if call.status.final else _changed(call, now, status=status, error=error, lease_until=None)


def _changed(call: Call, now: float, **fields: Any) -> Call:
    return call.model_copy(update={**fields, "updated_at": now})
