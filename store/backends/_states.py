"""State changes of a call, as pure functions for all backends: answers, claims, leases, approvals.

Each takes the current call and returns the changed call, or None if nothing changes. No storage, no clock: leases run
by the given steady time.
"""

import math
from collections.abc import Container, Sequence
from typing import Any

from pydantic_core import to_json

from store.backends._clocks import Now
from store.backends._records import media_of
from store.backends._rules import plain_json, same_json
from store.base import AlreadyAnswered, Decided, LeaseLost, NotPending, ProxyGone
from store.models import Call, Document, Session, Status

WORKER_LOST = "the worker that ran this call was lost; the call may have run"
LOOP_LOST = "the proxy that ran this call is gone; the call may have run"
NOBODY_WAITS = "the proxy that waited for this call is gone; the call was not run"


def answered(call: Call, *, result: Any, error: str | None, now: Now, parts: Sequence[Document] = ()) -> Call | None:
    """The call with its answer. Raises AlreadyAnswered, ValueError."""
    if error is None:
        status, result = Status.DONE, plain_json(result)
    else:
        status, result, parts = Status.FAILED, None, ()
    media = [media_of(part) for part in parts]
    if call.asked_args is not None:  # otherwise the model takes the result for that of its own arguments
        changed = {"the user changed the arguments to": call.args}
        if error is None:
            result = {**changed, "result": result}
        else:
            error = f"{error} (the user had changed the arguments to {to_json(call.args).decode()})"
    if call.status.final:
        if (call.status, call.error, call.media) == (status, error, media) and same_json(call.result, result):
            return None
        raise AlreadyAnswered(call)
    kept = [{"inlineData": {name: part["inlineData"][name] for name in ("mimeType", "data")}} for part in parts]
    return _changed(call, now, status=status, result=result, error=error, lease_until=None, media=media, parts=kept)


def claimable_at(call: Call) -> float | None:
    """The time from which the call can be claimed: 0 once released, the end of the lease while a worker has it. None:
    it is not available to workers."""
    if call.status is Status.RUNNING:
        return call.lease_until
    is_free = call.owner == "workers" and call.released and call.approval in (None, "approved")
    return 0.0 if is_free and call.status is Status.PENDING else None


def indexed(call: Call) -> tuple[float | None, str | None]:
    """The index columns of a call beside its session and tool: `claimable_at`, and the proxy that waits for it."""
    return claimable_at(call), None if call.status.final else call.proxy_id


def approval_required(session: Session | None) -> set[str]:
    """The tools with calls that must be approved before a worker gets them."""
    toolset = session.toolset if session else None
    return {name for name, rules in toolset.rules.items() if rules.approval} if toolset else set()


def is_claimable(call: Call, *, approval_required: set[str], steady: float) -> bool:
    """Whether the call can be claimed now. A running call with an expired lease was approved before."""
    start = claimable_at(call)
    if start is None or start > steady:
        return False
    return call.status is Status.RUNNING or call.approval == "approved" or call.name not in approval_required


def released(call: Call, *, detached: bool, now: Now) -> Call | None:
    has_worker = call.status is Status.RUNNING and call.lease_until is not None
    if call.released and (call.status is Status.PENDING or has_worker):
        return None
    if call.owner != "workers" or call.status is not Status.PENDING or call.approval in ("waiting", "denied"):
        raise NotPending(call)
    return _changed(call, now, released=True, proxy_id=None if detached else call.proxy_id)


def claimed(call: Call, *, lease: float, worker: str, now: Now) -> Call:
    return _changed(call, now, status=Status.RUNNING, worker=worker, lease_until=now.steady + lease)


def lost(call: Call, *, proxies: Container[str], now: Now) -> Call | None:
    """The settled call, if the worker or proxy that should answer it is gone. `proxies`: those with a lease."""
    proxy_gone = call.proxy_id is not None and call.proxy_id not in proxies
    if call.status.final:
        return None
    if call.lease_until is not None:
        if call.lease_until > now.steady:
            return None
        if not call.redeliver:
            return _changed(call, now, status=Status.FAILED, error=WORKER_LOST, lease_until=None)
    if not proxy_gone:
        return None
    error = NOBODY_WAITS if call.status is Status.PENDING else LOOP_LOST if call.lease_until is None else WORKER_LOST
    return _changed(call, now, status=Status.EXPIRED, error=error, lease_until=None)


def check_lease(lease: float) -> None:
    if not 0 < lease < math.inf:
        raise ValueError(f"lease is {lease}, and must be above 0")


def renewed(call: Call, *, worker: str, lease: float, now: Now) -> Call:
    if call.status is not Status.RUNNING or call.lease_until is None or call.worker != worker:
        raise LeaseLost(call)
    if lease == 0:
        return _changed(call, now, status=Status.PENDING, worker=None, lease_until=None)
    check_lease(lease)
    return _changed(call, now, lease_until=now.steady + lease)


def started(call: Call, *, loop_id: str, now: Now) -> Call | None:
    if call.status is Status.RUNNING and call.lease_until is None and call.loop_id == loop_id:
        return None
    if call.status is not Status.PENDING or call.approval in ("waiting", "denied"):
        raise NotPending(call)
    return _changed(call, now, status=Status.RUNNING, loop_id=loop_id)


def decided(
    call: Call, *, approved: bool, reason: str, args: Document | None, proxies: Container[str], now: Now
) -> Call | None:
    """The call after the decision; expired, if the proxy that waited for it is gone. Raises Decided, ValueError."""
    if args is not None:
        args = plain_json(args)
    if call.approval == ("approved" if approved else "denied") and (args is None or same_json(args, call.args)):
        return None
    if call.approval != "waiting" or call.status is not Status.PENDING:
        raise Decided(call)
    if (expired := lost(call, proxies=proxies, now=now)) is not None:
        return expired
    if approved and args is not None and not same_json(args, call.args):
        return _changed(call, now, approval="approved", args=args, asked_args=call.args)
    if approved:
        return _changed(call, now, approval="approved")
    error = f"the call was denied: {reason}" if reason else "the call was denied"
    return _changed(call, now, approval="denied", status=Status.DENIED, error=error)


def moved(call: Call, *, proxy_id: str, now: Now) -> Call | None:
    """The call, with this proxy as the one that waits for it."""
    if call.status.final or call.proxy_id in (None, proxy_id):
        return None
    return _changed(call, now, proxy_id=proxy_id)


def check_decided(call: Call) -> Call:
    """The call after a decision. Raises ProxyGone if it has expired instead."""
    if call.status is Status.EXPIRED and call.approval is None:
        raise ProxyGone(call)
    return call


def lease_left(call: Call, *, steady: float) -> float | None:
    return None if call.lease_until is None else max(0.0, call.lease_until - steady)


def settled(call: Call, *, status: Status, error: str, has_begun: bool, now: Now) -> Call | None:
    if status not in (Status.DENIED, Status.EXPIRED):
        raise ValueError(f"a call is settled as denied or expired, not as {status}")
    if call.status.final:
        return None
    approval = "denied" if status is Status.DENIED and call.approval == "waiting" else call.approval
    loop_id = call.loop_id if has_begun else None
    return _changed(call, now, status=status, error=error, lease_until=None, approval=approval, loop_id=loop_id)


def _changed(call: Call, now: Now, **fields: Any) -> Call:
    if fields.get("status") is Status.RUNNING:
        started = now.wall if call.started_at is None else call.started_at
        fields |= {"attempts": call.attempts + 1, "started_at": started}
    changed = call.model_copy(update={**fields, "updated_at": now.wall})
    if changed.status.final and changed.approval == "waiting":
        return changed.model_copy(update={"approval": None})  # a decision is no longer needed
    return changed
