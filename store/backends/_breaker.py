"""A circuit breaker: once a server does not answer, nobody else waits for it until a probe has reached it."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from store.traffic import Traffic

logger = logging.getLogger(__name__)

PAUSE = 0.1, 5.0
"""Seconds until the first probe, and at most; doubled with each probe. A random half of it is left out, so that not all
processes ask a server at the moment of its return."""


class Breaker:
    """Closed at first. `name`: the server's, for the log. `probe`: asks the server for little, and returns whether it
    has answered; it has a time limit. It is called by one task only, so requests never wait for it."""

    def __init__(self, name: str, probe: Callable[[], Awaitable[bool]], traffic: Traffic) -> None:
        self._name = name
        self._probe = probe
        self._traffic = traffic
        self._running: set[asyncio.Timeout] = set()
        self._recovery: asyncio.Task[None] | None = None
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._why, self._since, self._next = "", 0.0, 0.0
        self._last_answer = 0.0

    @property
    def is_open(self) -> bool:
        """Whether operations have to fail at once."""
        return not self._reachable.is_set()

    @property
    def outage(self) -> str:
        """Since when and why the server is not asked, and when it is tried next. Empty: it is asked."""
        if not self.is_open:
            return ""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._since))
        rest = self._next - time.monotonic()
        next_try = f"is in {rest:.1f} s" if rest > 0 else "is running"
        return f"not reachable since {since} ({self._why}); the next try {next_try}"

    def enter(self, limit: asyncio.Timeout) -> None:
        """An operation begins. Its time limit ends if the breaker opens."""
        self._running.add(limit)

    def leave(self, limit: asyncio.Timeout) -> None:
        self._running.discard(limit)

    def answered(self) -> float:
        """The server has answered just now. Returns the monotonic time."""
        self._last_answer = now = time.monotonic()
        return now

    def fail(self, why: str, began: float) -> None:
        """An operation, which began at this monotonic time, has not reached the server. Opens the breaker, unless the
        server has answered others in the latter half of the time since."""
        if self.is_open or self._last_answer > (began + time.monotonic()) / 2:
            return
        self._reachable.clear()
        self._why, self._since = why, time.time()
        self._traffic.state = "open"
        self._traffic.openings += 1
        logger.warning("store %s: not reachable (%s): it is not asked until a probe has reached it", self._name, why)
        now = asyncio.get_running_loop().time()
        for limit in self._running:
            if not limit.expired():
                limit.reschedule(now)
        self._recovery = asyncio.ensure_future(self._recover())

    async def recovered(self, timeout: float) -> None:
        """Return once the server is asked again, or after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._reachable.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """End the probes. Whoever waits for the recovery goes on."""
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait({self._recovery})
        self._reachable.set()
        self._traffic.state = "closed"

    async def _recover(self) -> None:
        pause = PAUSE[0]
        while True:
            wait = pause * random.uniform(0.5, 1.0)
            self._next = time.monotonic() + wait
            await asyncio.sleep(wait)
            self._traffic.state = "half_open"
            if await self._probe():
                break
            self._traffic.state = "open"
            pause = min(2 * pause, PAUSE[1])
        self._traffic.state = "closed"
        self._reachable.set()
        logger.warning("store %s: reachable again, after %.1f s", self._name, time.time() - self._since)
