"""A database that another program holds is tried again, and meanwhile the event loop does something else.

SQLite itself can only wait by standing still, so it is given next to no time. A method that found the file held has
written nothing, and is called again as a whole.

All methods have one patience: it begins when the first of them finds the file held, and is new once something could be
written. Where it is over, a method is tried once, and nobody waits: an answer that asks for a dozen things of a store
that is held for good is not kept a dozen times as long.
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from store.base import StoreBusy, is_run_now

PATIENCE = 5.0
"""Seconds after which the file is taken to be held for good, from when it was first found so."""

AT_ONCE = 50
"""Milliseconds for which SQLite may stand still where nothing can be awaited."""

_FIRST, _LONGEST = 0.002, 0.2  # seconds between two tries, doubled with each


class Backend(Protocol):
    """`held_since`: the event loop's time when the file was found held, None once something could be written."""

    busy_timeout: int | None
    held_since: float | None

    def set_busy_timeout(self, milliseconds: int) -> None: ...


def patient[T](method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The method, tried again where it raises StoreBusy, until the file is taken to be held for good. Under `run_now`
    it is not."""

    @functools.wraps(method)
    async def retried(store: Backend, *arguments: Any, **named: Any) -> T:
        has_to_be_now = is_run_now()
        timeout = AT_ONCE if has_to_be_now else 0
        since: float | None = None
        pause = _FIRST
        while True:
            if store.busy_timeout != timeout:
                store.set_busy_timeout(timeout)
            try:
                return await method(store, *arguments, **named)
            except StoreBusy:
                if has_to_be_now:
                    raise
                now = asyncio.get_running_loop().time()
                if store.held_since is None:
                    store.held_since = now
                since = store.held_since if since is None else since
                if now >= since + PATIENCE:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    return retried


def all_patient(backend: type, names: Collection[str]) -> None:
    """Make these methods of a backend patient."""
    for name in names:
        setattr(backend, name, patient(getattr(backend, name)))
