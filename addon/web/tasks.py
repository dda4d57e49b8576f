"""Background tasks with strong references; the event loop itself keeps only weak ones."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)
_running: set[asyncio.Task[Any]] = set()


def spawn[T](coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Run a coroutine as a background task in the running loop."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended. Their errors are logged."""
    for task in tasks:
        task.cancel()
    for task, outcome in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(outcome, Exception):
            _log.warning("%s: %r", task.get_name(), outcome)
