"""Confirmation of writes by a replica: only of those that the present primary has taken itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_LATE = 15.0
"""Seconds after a write within which its caller asks for its confirmation."""


class Primary:
    """The server that takes the writes, named by its replication id, which changes with each promotion and restart.

    If another server takes its place, that one may lack the latest writes, and its replicas would confirm them all the
    same. So for a while nothing is confirmed: whoever wrote to the earlier primary has asked by then."""

    def __init__(self) -> None:
        self._name = ""
        self._written = self._doubt_until = float("-inf")

    def note_write(self, name: str) -> None:
        self._note(name)
        self._written = time.monotonic()

    def confirms(self, name: str) -> bool:
        """Whether this primary has all writes that somebody may still want to have confirmed."""
        self._note(name)
        return time.monotonic() >= self._doubt_until

    def _note(self, name: str) -> None:
        if name != self._name:
            self._doubt_until = self._written + _LATE
            self._name = name


class SharedWait:
    """Runs a function for callers that come at the same time: once for all who came before it began."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        if self._next is None:
            self._next = asyncio.ensure_future(self._run_after(self._running))
            self._next.add_done_callback(_retrieve)
        await asyncio.shield(self._next)

    async def _run_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._next = self._next, None
        await self._run()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Its callers may all have been cancelled."""
    if not task.cancelled():
        task.exception()
