"""The tools of the loop's measurements. `sent` is the time at which the upstream wrote the call."""

import asyncio
import time


def noop(sent: float = 0) -> dict[str, bool]:
    """Do nothing."""
    return {"ok": True}


async def async_noop(sent: float = 0) -> dict[str, bool]:
    """Do nothing, in the event loop."""
    return {"ok": True}


async def nap(sent: float = 0) -> dict[str, bool]:
    """Take 300 ms."""
    await asyncio.sleep(0.3)
    return {"ok": True}


async def short_nap(sent: float = 0) -> dict[str, bool]:
    """Take 100 ms."""
    await asyncio.sleep(0.1)
    return {"ok": True}


async def other_nap(sent: float = 0) -> dict[str, bool]:
    """Take 100 ms as well."""
    await asyncio.sleep(0.1)
    return {"ok": True}


def started(sent: float) -> dict[str, float]:
    """Tell how many seconds the call took to get here."""
    return {"seconds": time.monotonic() - sent}
