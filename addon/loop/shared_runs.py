"""Shares results among calls: one run for identical calls in flight, and a cache of results for `cache_ttl` seconds.

Identical calls have exactly the same arguments, session, tool, and version of its declaration and executor. A session's
results are dropped when its version changes: its tools were replaced, or it was deleted.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import TLRUCache

from addon.tools.outputs import ToolOutput

MAX_CACHE = 64 * 1024 * 1024  # bytes of cached results
MAX_SESSIONS = 10_000  # sessions with cached results: clients choose session names


class RunKey(NamedTuple):
    """`version`: digest of the tool's declaration, rules and executor when the call begins."""

    session: str
    tool: str
    version: bytes
    args: bytes


@dataclass(slots=True)
class _SharedRun:
    """One run shared by identical calls. `waiting`: how many calls wait for it."""

    task: asyncio.Task[ToolOutput]
    waiting: int = 0


class SharedRuns:
    """`tasks`: the unfinished runs, including those that nobody waits for."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[ToolOutput]] = set()
        self._in_flight: dict[RunKey, _SharedRun] = {}
        self._versions: dict[str, int] = {}
        self._cache: TLRUCache[RunKey, tuple[ToolOutput, float]] = TLRUCache(
            maxsize=MAX_CACHE,
            ttu=lambda _key, value, now: now + value[1],
            timer=time.monotonic,
            getsizeof=lambda value: value[0].size + 512,
        )

    async def result(
        self,
        key: RunKey,
        version: int,
        run: Callable[[], Coroutine[Any, Any, ToolOutput]],
        *,
        share: bool,
        cache_ttl: float | None,
    ) -> ToolOutput:
        """The result of `run`, or of an identical call. `version`: the session's version when the call began.
        `share`: use a run in flight. `cache_ttl`: seconds to reuse a result. Raises the run's errors; failures
        are not cached."""
        if self._versions.setdefault(key.session, version) != version:
            self.forget(key.session)
            self._versions[key.session] = version
        if len(self._versions) > MAX_SESSIONS:
            self.forget(next(iter(self._versions)))
        if cache_ttl and (cached := self._cache.get(key)) is not None:
            return cached[0]
        result = await (self._shared(key, run) if share else run())
        if cache_ttl and self._versions.get(key.session) == version:
            self._cache[key] = (result, cache_ttl)
        return result

    def forget(self, session: str) -> None:
        """Drop the results of a session. Runs in flight continue for the calls that wait, but accept no others."""
        self._versions.pop(session, None)
        for key in [key for key in self._cache if key.session == session]:
            del self._cache[key]
        for key in [key for key in self._in_flight if key.session == session]:
            del self._in_flight[key]

    def forget_all(self) -> None:
        """Drop the results of all sessions: their tools may have changed."""
        for session in list(self._versions):
            self.forget(session)

    async def _shared(self, key: RunKey, run: Callable[[], Coroutine[Any, Any, ToolOutput]]) -> ToolOutput:
        """Run identical calls once. The run is cancelled when the last waiting call goes."""
        shared = self._in_flight.get(key)
        if shared is None:
            shared = self._in_flight[key] = _SharedRun(asyncio.ensure_future(run()))
            shared.task.set_name(key.tool)
            self.tasks.add(shared.task)
            shared.task.add_done_callback(self.tasks.discard)
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting or shared.task.done():
                shared.task.cancel()
                if self._in_flight.get(key) is shared:
                    del self._in_flight[key]
