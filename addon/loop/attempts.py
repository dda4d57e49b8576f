"""Runs one call, and retries it if a retry may help and can do no harm. Each try has a time limit."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

from addon.loop.results import result_json
from addon.own_secrets import own_secrets
from addon.tools.base import ToolError
from addon.tools.bounded import bounded

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0
"""The longest pause before the second try, which doubles with each try, and the longest of all, in seconds."""


async def attempt(
    run: Callable[[], Awaitable[Any]], name: str, *, timeout: float, retries: int, idempotent: bool
) -> bytes:
    """The result of `run` as JSON. `timeout`: seconds for each try; `retries`: tries after the first.

    Raises the error of the last try. A tool that is not idempotent is retried only if the try did not reach it.
    """

    async def result() -> bytes:
        data = result_json(await run())
        return own_secrets.redaction.data(data)

    for number in itertools.count():
        try:
            return await bounded(result, timeout, name)
        except Exception as error:
            if number >= retries or not is_retryable(error, idempotent=idempotent):
                raise
        await asyncio.sleep(random.uniform(0, min(_FIRST_PAUSE * 2**number, _MAX_PAUSE)))
    raise AssertionError  # never reached


def is_retryable(error: BaseException, *, idempotent: bool) -> bool:
    """Whether the call may be retried after this error."""
    if isinstance(error, ToolError):
        return error.retryable and (idempotent or not error.sent)
    return isinstance(error, TimeoutError) and idempotent
