"""A database that another program holds is tried again, and meanwhile the event loop does something else.

SQLite itself can only wait by standing still, so it is given next to no time. A method that found the file held has
written nothing, and is called again as a whole.
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from store.base import StoreBusy, is_run_now

PATIENCE = 5.0
"""Seconds after which the file is taken to be held for good."""

AT_ONCE = 50
"""Milliseconds for which SQLite may stand still where nothing can be awaited."""

_FIRST, _LONGEST = 0.002, 0.2  # seconds between two tries, doubled with each


class Backend(Protocol):
    busy_timeout: int | None

    def set_busy_timeout(self, milliseconds: int) -> None: ...


def patient[T](method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The method, tried again where it raises StoreBusy, for PATIENCE seconds at most. Under `run_now` it is not."""

    @functools.wraps(method)
    async def retried(store: Backend, *arguments: Any, **named: Any) -> T:
        has_to_be_now = is_run_now()
        if store.busy_timeout != (timeout := AT_ONCE if has_to_be_now else 0):
            store.set_busy_timeout(timeout)
        try:
            return await method(store, *arguments, **named)
        except StoreBusy:
            if has_to_be_now:
                raise
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + PATIENCE, _FIRST
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)
            store.set_busy_timeout(0)
            try:
                return await method(store, *arguments, **named)
            except StoreBusy:
                if clock() >= deadline:
                    raise

    return retried


def all_patient(backend: type, names: Collection[str]) -> None:
    """Make these methods of a backend patient."""
    for name in names:
        setattr(backend, name, patient(getattr(backend, name)))
