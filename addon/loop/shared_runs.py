"""Results that several calls share: one run for identical calls in flight, and what is kept for `cache_ttl`.

Calls are identical if nothing that could tell their results apart differs: the exact arguments, the session, the tool,
and the version of its declaration and executor. What a session has here is dropped when the session is at another
version: its tools were replaced, or it was deleted.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import TLRUCache

MAX_CACHE = 64 * 1024 * 1024  # bytes of results that are kept for `cache_ttl`
MAX_SESSIONS = 10_000  # of which something is kept: clients name sessions as they like


class RunKey(NamedTuple):
    """`version` stands for the tool's declaration, rules and executor as they are when the call begins."""

    session: str
    tool: str
    version: bytes
    args: bytes


@dataclass(slots=True)
class _Flight:
    """One run that identical calls share, and how many wait for it."""

    task: asyncio.Task[bytes]
    waiting: int = 0


class SharedRuns:
    """`tasks` are the runs that are not over, also those that nobody waits for."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[bytes]] = set()
        self._flying: dict[RunKey, _Flight] = {}
        self._versions: dict[str, int] = {}
        self._cache: TLRUCache[RunKey, tuple[bytes, float]] = TLRUCache(
            maxsize=MAX_CACHE,
            ttu=lambda _key, value, now: now + value[1],
            timer=time.monotonic,
            getsizeof=lambda value: len(value[0]) + 512,
        )

    async def result(
        self,
        key: RunKey,
        version: int,
        run: Callable[[], Coroutine[Any, Any, bytes]],
        *,
        shares: bool,
        keeps: float | None,
    ) -> bytes:
        """The result of `run`, or of a run of an identical call. `version` is the session's, as the call knows it.
        `shares`: one in flight may be shared; `keeps`: seconds for which a result is used again. Raises what the run
        raises; a failure is not kept."""
        if self._versions.setdefault(key.session, version) != version:
            self.forget(key.session)
            self._versions[key.session] = version
        if len(self._versions) > MAX_SESSIONS:
            self.forget(next(iter(self._versions)))
        if keeps and (kept := self._cache.get(key)) is not None:
            return kept[0]
        result = await (self._shared(key, run) if shares else run())
        if keeps and self._versions.get(key.session) == version:
            self._cache[key] = (result, keeps)
        return result

    def forget(self, session: str) -> None:
        """Drop the results of a session. Runs in flight go on for those that wait, and are shared with nobody else."""
        self._versions.pop(session, None)
        for key in [key for key in self._cache if key.session == session]:
            del self._cache[key]
        for key in [key for key in self._flying if key.session == session]:
            del self._flying[key]

    async def _shared(self, key: RunKey, run: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Identical calls in flight run once. The run ends with the last one that waits for it."""
        flight = self._flying.get(key)
        if flight is None:
            flight = self._flying[key] = _Flight(asyncio.ensure_future(run()))
            flight.task.set_name(key.tool)
            self.tasks.add(flight.task)
            flight.task.add_done_callback(self.tasks.discard)
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting or flight.task.done():
                flight.task.cancel()
                if self._flying.get(key) is flight:
                    del self._flying[key]
