"""Drains the proxy before it ends: it accepts no new connections and waits for the requests in flight."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator

from mitmproxy import ctx, http

logger = logging.getLogger("toolgraft")

_POLL_INTERVAL = 0.02
"""Seconds between two checks for requests in flight. mitmproxy has no event for the end of a response."""


class InFlight:
    """The model requests that clients are waiting for. Live connections do not count: they have no end of their own."""

    def __init__(self) -> None:
        self._flows: dict[int, http.HTTPFlow] = {}

    def add(self, flow: http.HTTPFlow) -> None:
        self._flows[id(flow)] = flow

    def response(self, flow: http.HTTPFlow) -> None:
        self._flows.pop(id(flow), None)

    def error(self, flow: http.HTTPFlow) -> None:
        self._flows.pop(id(flow), None)

    def __len__(self) -> int:
        return len(self._flows)


async def drain(timeout: float, in_flight: Callable[[], int]) -> None:
    """Close the proxy's ports and wait for the requests in flight, for `timeout` seconds or until a second signal."""
    await ctx.master.addons.get("proxyserver").servers.update([])
    if not in_flight():
        return
    logger.info(f"ending: {in_flight()} requests have {timeout:g} s to finish; a second signal ends them now")
    with _signalled() as signalled, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while in_flight() and not signalled.is_set():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_INTERVAL)
    if unfinished := in_flight():
        logger.warning(f"ending: {unfinished} requests did not finish in time")


@contextlib.contextmanager
def _signalled() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set. mitmproxy, which handled them before, is already ending."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in other threads
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, event.set)
    yield event
