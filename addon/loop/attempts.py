"""Runs one call, and retries it if a retry may help and can do no harm. Each try has a time limit."""

from collections.abc import Awaitable, Callable
from typing import Any

import tenacity

from addon.loop.results import result_json
from addon.own_secrets import own_secrets
from addon.tools.base import ToolError
from addon.tools.bounded import bounded


async def attempt(
    run: Callable[[], Awaitable[Any]], name: str, *, timeout: float, retries: int, idempotent: bool
) -> bytes:
    """The result of `run` as JSON. `timeout`: seconds for each try; `retries`: tries after the first.

    Raises the error of the last try. A tool that is not idempotent is retried only if the try did not reach it.
    """

    async def result() -> bytes:
        data = result_json(await run())
        return own_secrets.redaction.data(data)

    async def attempt_once() -> bytes:
        return await bounded(result, timeout, name)

    def may_retry(error: BaseException) -> bool:
        return is_retryable(error, idempotent=idempotent)

    tries = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(1 + retries),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        retry=tenacity.retry_if_exception(may_retry),
        reraise=True,
    )
    return await tries(attempt_once)


def is_retryable(error: BaseException, *, idempotent: bool) -> bool:
    """Whether the call may be retried after this error."""
    if isinstance(error, ToolError):
        return error.retryable and (idempotent or not error.sent)
    return isinstance(error, TimeoutError) and idempotent
