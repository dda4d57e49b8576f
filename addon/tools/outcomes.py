"""Waits until all of several awaitables have ended."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any


async def outcomes_of(awaitables: Sequence[Awaitable[Any]], *, uncancelled: bool = False) -> list[BaseException | None]:
    """Run all concurrently to their end. Returns for each its exception, or None.

    Cancelling cancels them too; with `uncancelled`, it waits for their end instead.
    """
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    cancelled = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
            if not uncancelled:
                for task in tasks:
                    task.cancel()
    if cancelled:
        raise asyncio.CancelledError
    return [asyncio.CancelledError() if task.cancelled() else task.exception() for task in tasks]
