"""Calls within their time: one that does not let itself be cancelled is left behind, and keeps nobody waiting."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from addon.tools.base import ToolError, error_text

GRACE = 0.5  # seconds that a cancelled call has to come to its end
_TIMES = 2  # that it is cancelled in these: a tool may swallow it once

_log = logging.getLogger(__name__)
_left: set[asyncio.Task[object]] = set()


async def bounded[T](call: Callable[[], Awaitable[T]], seconds: float | None, name: str) -> T:
    """What the call returns or raises. Raises ToolError when it has taken `seconds`; None: it may take any time.

    The call has a task of its own, which is cancelled when its time is out, or its caller is cancelled. What is no
    Exception (SystemExit, KeyboardInterrupt) is raised as ToolError: it would end the event loop.
    """
    task = asyncio.ensure_future(_contained(call))
    task.set_name(name)
    task.add_done_callback(_seen)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _end(task)
        raise
    if not task.done():
        await _end(task)
        raise ToolError(f"{name} took longer than {seconds:g} s", retryable=True)
    return task.result()


def abandoned_calls() -> list[str]:
    """The names of the calls that were cancelled and still run."""
    return sorted({task.get_name() for task in _left})


async def _contained[T](call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise ToolError(error_text(error)) from error


async def _end[T](task: asyncio.Task[T]) -> None:
    """Cancel a call, and wait for its end, though not for long."""
    try:
        for _ in range(_TIMES):
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE / _TIMES)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if not task.done():
            _left.add(task)
            task.add_done_callback(_left.discard)
            _log.warning("a call of %s goes on though it was cancelled: it is not waited for", task.get_name())


def _seen[T](task: asyncio.Task[T]) -> None:
    """Nobody may be left to ask how the call ended: asyncio would log that."""
    if not task.cancelled():
        task.exception()
