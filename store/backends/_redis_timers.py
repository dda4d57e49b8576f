"""Time limits that end nothing because the event loop was blocked: the server gets as much more time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_LATE = 0.1
"""The share of its time by which a timer comes late if the event loop was blocked."""


def time_back(late: float, seconds: float) -> float:
    """Seconds that a limit of so many seconds is put off whose timer came so late. At most the limit itself."""
    return min(late, seconds) if late > _LATE * seconds else 0.0


@contextlib.asynccontextmanager
async def patiently(seconds: float) -> AsyncIterator[None]:
    """Like `asyncio.timeout`."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def end() -> None:
        nonlocal timer
        now = loop.time()
        if more := time_back(now - timer.when(), seconds):  # replies may not have been read
            timer = loop.call_at(now + more, end)
        else:
            limit.reschedule(now)

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, end)
        try:
            yield
        finally:
            timer.cancel()
