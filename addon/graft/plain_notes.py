"""Stores notes of turns without calls. If the store fails, stores them later."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from addon.metrics import Metrics
from store.base import Store, StoreUnavailable

type _Note = tuple[str, Sequence[bytes], bytes]
"""The arguments of `Store.save_plain`."""

_MOST_NOTES = 1024
"""The most notes kept for a failed store."""


class PlainNotes:
    """`warn` logs a warning. `failed` logs an unexpected error with a description."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        warn: Callable[[str], None],
        failed: Callable[[Exception, str], object],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._warn = warn
        self._failed = failed
        self._waiting: deque[_Note] = deque()
        self._being_made: set[asyncio.Task[None]] = set()

    async def add(self, session: str, keys: Sequence[bytes], chain: bytes) -> None:
        """Note a turn without calls, while the answer continues. If the store fails, the note is made later, after all
        newer notes, so that a note that always fails does not block the others."""
        making = self._make((session, keys, chain))
        # the note leaves for the server before the end of the answer leaves for the client
        loop, name = asyncio.get_running_loop(), "a note of an answer without calls"
        task = asyncio.Task(making, loop=loop, eager_start=True, name=name)
        if not task.done():
            self._being_made.add(task)
            task.add_done_callback(self._being_made.discard)

    async def _make(self, new: _Note) -> None:
        note: _Note | None = new
        try:
            while note is not None:
                await self._store.save_plain(*note)
                note = self._waiting.popleft() if self._waiting else None
        except StoreUnavailable as error:
            self._metrics.error("store")
            self._warn(f"the store failed, answers without calls are noted later: {error}")
        except Exception as error:
            self._failed(error, "an answer without calls is noted later")
        finally:
            if note is not None:
                self._add_later(note)

    def _add_later(self, note: _Note) -> None:
        if len(self._waiting) == _MOST_NOTES:
            self._waiting.popleft()
            self._metrics.error("store")
            self._warn(f"more than {_MOST_NOTES} answers without calls wait to be noted: the oldest are never noted")
        self._waiting.append(note)
