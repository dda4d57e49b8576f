"""What a request waits for before it goes on: calls of its last step, by their records, whoever runs them."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from store.base import Store, UnknownCall
from store.models import Call, Status

_LONG = 3600.0  # seconds of one wait that has no end


async def open_calls(store: Store, session: str, call_ids: Collection[str]) -> list[Call]:
    """Those of these calls that have no answer yet."""
    found: list[Call] = []
    for call_id in call_ids:
        try:
            call = await store.call(session, call_id)
        except UnknownCall:  # it went with its session
            continue
        if not call.status.final:
            found.append(call)
    return found


async def being_run(store: Store, calls: Sequence[Call], after: Callable[[str], Collection[str]]) -> list[Call]:
    """Those of a step's open calls that are being run. `after`: the tools whose calls come before one of this name; a
    call whose turn comes after one that nobody runs is not run either."""
    found = [call for call in calls if await is_being_run(store, call)]
    held = {call.name for call in calls if call not in found}
    while waits := [one for one in found if one.status is Status.PENDING and not held.isdisjoint(after(one.name))]:
        found = [call for call in found if call not in waits]
        held.update(call.name for call in waits)
    return found


async def is_being_run(store: Store, call: Call) -> bool:
    """Whether a proxy or a worker that is alive runs the call, or will as soon as its turn has come. A call that waits
    for an approval is not. A call that nobody will answer any more is settled."""
    if call.status is Status.PENDING:
        return call.proxy_id is not None and call.approval != "waiting"
    if call.lease_until is None:
        return True  # by a proxy, or it would be settled
    if await store.lease_left(call.session, call.call_id):
        return True
    await store.settle_lost()
    return call.redeliver and call.proxy_id is not None  # for as long as the proxy waits for another worker


async def until_one_changes(
    store: Store, calls: Sequence[Call], gone: asyncio.Future[Any], timeout: float | None = None
) -> bool:
    """Wait until one of these calls is another; False if `timeout` seconds are over before, or the client is gone."""
    changes = [asyncio.ensure_future(_change(store, call, timeout)) for call in calls]
    try:
        await asyncio.wait({gone, *changes}, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done() and any(one.done() and one.result() for one in changes)
    finally:
        for one in changes:
            one.cancel()


async def _change(store: Store, call: Call, timeout: float | None) -> bool:
    left = _LONG if timeout is None else timeout
    try:
        if call.lease_until is not None and (lease := await store.lease_left(call.session, call.call_id)):
            return await store.wait_call(call, min(left, lease)) is not None or lease < left
        return await store.wait_call(call, left) is not None or timeout is None
    except UnknownCall:
        return True
