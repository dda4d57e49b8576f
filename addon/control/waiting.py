"""The calls that wait for an approval."""

import asyncio
from collections.abc import AsyncIterator

from store.base import Store
from store.models import Call, Status

_MOST = 10_000
"""The most pending calls that are read to find those that wait for an approval."""
_PORTION = 16
"""The number of calls that are read before other tasks run: calls may be large."""


async def waiting_calls(store: Store, session: str | None = None, *, name: str | None = None) -> AsyncIterator[Call]:
    """Oldest first. `name`: only calls of this tool."""
    cursor, looked_at = None, 0
    while looked_at < _MOST:
        found = await store.calls(session=session, status=Status.PENDING, name=name, limit=_PORTION, cursor=cursor)
        for call in found.items:
            if call.approval == "waiting":
                yield call
        looked_at, cursor = looked_at + len(found.items), found.next_cursor
        if cursor is None:
            return
        await asyncio.sleep(0)
