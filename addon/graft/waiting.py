"""Lets a request wait for the calls of its last step, whoever runs them, by watching their records."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from store.base import Store, UnknownCall
from store.models import Call, Status

_LONG = 3600.0  # seconds of one wait if no deadline is set


async def open_calls(store: Store, session: str, call_ids: Collection[str]) -> list[Call]:
    """The calls without an answer."""
    found: list[Call] = []
    for call_id in call_ids:
        try:
            call = await store.call(session, call_id)
        except UnknownCall:  # deleted with its session
            continue
        if not call.status.final:
            found.append(call)
    return found


async def being_run(store: Store, calls: Sequence[Call], after: Callable[[str], Collection[str]]) -> list[Call]:
    """The open calls of a step that are being run. `after`: the tools that must run before a tool of this name. A call
    after one that nobody runs does not count."""
    found = [call for call in calls if await is_being_run(store, call)]
    blocking = {call.name for call in calls if call not in found}
    while waits := [one for one in found if one.status is Status.PENDING and not blocking.isdisjoint(after(one.name))]:
        found = [call for call in found if call not in waits]
        blocking.update(call.name for call in waits)
    return found


async def is_being_run(store: Store, call: Call) -> bool:
    """Whether a live proxy or worker runs the call, or will when its turn comes. A call that waits for an approval does
    not count. A call that nobody can answer any longer is settled."""
    if call.status is Status.PENDING:
        return call.proxy_id is not None and call.approval != "waiting"
    if call.lease_until is None:
        return True  # a proxy runs it; otherwise it would be settled
    if await store.lease_left(call.session, call.call_id):
        return True
    await store.settle_lost()
    return call.redeliver and call.proxy_id is not None  # as long as the proxy waits for another worker


async def until_one_changes(
    store: Store, calls: Sequence[Call], gone: asyncio.Future[Any], timeout: float | None = None
) -> bool:
    """Wait until one of these calls changes. Returns False after `timeout` seconds, or if the client is gone."""
    changes = [asyncio.ensure_future(_change(store, call, timeout)) for call in calls]
    try:
        await asyncio.wait({gone, *changes}, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done() and any(one.done() and one.result() for one in changes)
    finally:
        for one in changes:
            one.cancel()


async def _change(store: Store, call: Call, timeout: float | None) -> bool:
    seconds = _LONG if timeout is None else timeout
    try:
        if call.lease_until is not None and (lease := await store.lease_left(call.session, call.call_id)):
            return await store.wait_call(call, min(seconds, lease)) is not None or lease < seconds
        return await store.wait_call(call, seconds) is not None or timeout is None
    except UnknownCall:
        return True
