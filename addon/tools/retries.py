"""Repeats a tool's call after a failure, in the proxy and in workers alike."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0
"""In seconds: the longest pause before the second attempt, which doubles each time, and its upper limit."""


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
