"""Retries methods while another program locks the database, without blocking the event loop.

SQLite itself can only wait by blocking, so its timeout is 0. A method that finds the file locked has written nothing,
and is called again as a whole.

All methods share one time limit: it starts when the first method finds the file locked, and is reset by a successful
write. After it, each method is tried only once: an answer that needs the store a dozen times does not wait a dozen
times.
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from store.base import StoreBusy

PATIENCE = 5.0
"""Seconds from when the file was first found locked until methods no longer wait."""

_FIRST_PAUSE, _MAX_PAUSE = 0.002, 0.2  # seconds between two tries, doubled with each


class Backend(Protocol):
    """`locked_since`: the event loop's time when the file was first found locked; None after a successful write."""

    locked_since: float | None


def patient[T](method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The method, retried on StoreBusy until the time limit is over."""

    @functools.wraps(method)
    async def retried(store: Backend, *arguments: Any, **named: Any) -> T:
        since: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                return await method(store, *arguments, **named)
            except StoreBusy:
                now = asyncio.get_running_loop().time()
                if store.locked_since is None:
                    store.locked_since = now
                since = store.locked_since if since is None else since
                if now >= since + PATIENCE:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    return retried


def all_patient(backend: type, names: Collection[str]) -> None:
    for name in names:
        setattr(backend, name, patient(getattr(backend, name)))
