"""Runs a tool's calls, in the proxy and in workers: each attempt has a time limit, and a failed attempt is repeated if
that can help and does no harm. A call that ignores its cancellation is abandoned, so that nothing waits for it."""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from addon.core.history.outcomes import redacted_parts
from addon.monitoring.own_secrets import own_secrets
from addon.tools.base import ToolError, error_text
from addon.tools.outputs import ToolOutput, output_of

GRACE = 0.5  # seconds that a cancelled call has to end
_CANCELLATIONS = 2  # within GRACE: a tool may swallow the first

_log = logging.getLogger(__name__)
_abandoned: set[asyncio.Task[object]] = set()

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0
"""In seconds: the longest pause before the second attempt, which doubles each time, and its upper limit."""


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


async def with_retries[T](run: Callable[[], Awaitable[T]], retries: int, may_retry: Callable[[Exception], bool]) -> T:
    """The result of `run`. `retries`: attempts after the first. Raises the error of the last attempt."""
    for number in itertools.count():
        try:
            return await run()
        except Exception as error:
            if number >= retries or not may_retry(error):
                raise
        await asyncio.sleep(random.uniform(0, min(_FIRST_PAUSE * 2**number, _MAX_PAUSE)))
    raise AssertionError  # never reached


async def attempt(
    run: Callable[[], Awaitable[Any]], name: str, *, timeout: float, retries: int, idempotent: bool, max_media: int
) -> ToolOutput:
    """The output of `run`, with media of at most `max_media` bytes. `timeout`: seconds for each try. `retries`: tries
    after the first.

    Raises the error of the last try. A tool that is not idempotent is retried only if the try did not reach it.
    """

    async def result() -> ToolOutput:
        output = output_of(await run(), max_media)
        redact = own_secrets.redaction.data
        return ToolOutput(redact(output.data), tuple(redacted_parts(output.parts, redact)))

    return await with_retries(
        lambda: bounded(result, timeout, name), retries, lambda error: is_retryable(error, idempotent=idempotent)
    )


def is_retryable(error: BaseException, *, idempotent: bool) -> bool:
    """Whether the call may be retried after this error."""
    if isinstance(error, ToolError):
        return error.retryable and (idempotent or not error.sent)
    return isinstance(error, TimeoutError) and idempotent
