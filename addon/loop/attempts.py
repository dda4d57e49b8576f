"""The tries of one call: each with its time, and another one where that may help and can do no harm."""

from collections.abc import Awaitable, Callable
from typing import Any

import tenacity

from addon.loop.results import plain
from addon.own_secrets import own_secrets
from addon.tools.base import ToolError
from addon.tools.bounded import bounded


async def attempt(
    run: Callable[[], Awaitable[Any]], name: str, *, timeout: float, retries: int, idempotent: bool
) -> bytes:
    """The result of `run` as JSON. `timeout`: seconds for a try; `retries`: tries after the first.

    Raises what the last try raised. A tool that is not idempotent is tried again only if the try did not reach it.
    """

    async def result() -> bytes:
        data = plain(await run())
        return own_secrets.redaction.data(data)

    async def once() -> bytes:
        return await bounded(result, timeout, name)

    def again(error: BaseException) -> bool:
        return is_retryable(error, idempotent=idempotent)

    tries = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(1 + retries),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        retry=tenacity.retry_if_exception(again),
        reraise=True,
    )
    return await tries(once)


def is_retryable(error: BaseException, *, idempotent: bool) -> bool:
    """Whether the call may be tried again after this."""
    if isinstance(error, ToolError):
        return error.retryable and (idempotent or not error.sent)
    return isinstance(error, TimeoutError) and idempotent
