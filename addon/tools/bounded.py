"""Runs calls with a time limit. A call that ignores its cancellation is abandoned, so that nothing waits for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from addon.tools.base import ToolError, error_text

GRACE = 0.5  # seconds that a cancelled call has to end
_CANCELLATIONS = 2  # within GRACE: a tool may swallow the first

_log = logging.getLogger(__name__)
_abandoned: set[asyncio.Task[object]] = set()


async def bounded[T](call: Callable[[], Awaitable[T]], seconds: float | None, name: str) -> T:
    """Run a call and return its result. Raises ToolError if it takes longer than `seconds`; None: no limit.

    The call runs in its own task, which is cancelled when its time is over or its caller is cancelled. SystemExit and
    KeyboardInterrupt are raised as ToolError, because they would end the event loop.
    """
    task = asyncio.ensure_future(_without_exits(call))
    task.set_name(name)
    task.add_done_callback(_retrieve_exception)
    try:
        if not task.done():  # an eager task may have ended already
            await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _end(task)
        raise
    if not task.done():
        await _end(task)
        raise ToolError(f"{name} took longer than {seconds:g} s", retryable=True)
    return task.result()


def abandoned_calls() -> list[str]:
    """The names of calls that were cancelled and are still running."""
    return sorted({task.get_name() for task in _abandoned})


async def _without_exits[T](call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise ToolError(error_text(error)) from error


async def _end[T](task: asyncio.Task[T]) -> None:
    """Cancel a call, and wait up to GRACE seconds for its end."""
    try:
        for _ in range(_CANCELLATIONS):
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE / _CANCELLATIONS)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if not task.done():
            _abandoned.add(task)
            task.add_done_callback(_abandoned.discard)
            _log.warning("a call of %s ignores its cancellation and is abandoned", task.get_name())


def _retrieve_exception[T](task: asyncio.Task[T]) -> None:
    """asyncio logs exceptions that nothing retrieves, and the caller may be gone."""
    if not task.cancelled():
        task.exception()
