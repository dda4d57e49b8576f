"""Simulated time: tests do not wait for pauses, timeouts or leases, and none expires early on a busy machine."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest


@pytest.fixture
async def leaping() -> AsyncIterator[None]:
    """The event loop's time stands still while any task can run, and then leaps to the next timer. Not for tests that
    wait for a thread, a process or a connection."""
    loop: Any = asyncio.get_running_loop()
    now: float = loop.time()
    select = loop._selector.select

    def current() -> float:
        return now

    def leap(timeout: float | None) -> Any:
        nonlocal now
        events = select(0 if timeout is not None else None)
        if not events and timeout:
            now += timeout
        return events

    with (
        mock.patch.object(loop, "time", current),
        mock.patch.object(loop._selector, "select", leap),
        mock.patch.object(time, "monotonic", current),
    ):
        yield


def pass_time(seconds: float) -> None:
    """Advance the event loop's time by `seconds`."""
    loop: Any = asyncio.get_running_loop()
    time_before = loop.time
    loop.time = lambda: time_before() + seconds
