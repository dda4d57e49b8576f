"""Creates the backend for the URL in `graft_store`. A backend is imported only if its scheme is used.

A new backend is one file under `store/backends/` and one line in `BACKENDS`.
"""

import importlib
import time
from collections.abc import Callable

from store.base import Durability, Store
from store.base import uptime as machine_uptime

BACKENDS = {
    "memory": "store.backends.memory:MemoryStore",
    "sqlite": "store.backends.sqlite:SqliteStore",
    **dict.fromkeys(
        ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
        "store.backends.redis:RedisStore",
    ),
}
"""Scheme → `module:class`; the class is a `Store` that has `from_url`."""


def open_url(
    url: str,
    *,
    ttl: float,
    clock: Callable[[], float] = time.time,
    read_only: bool = False,
    durability: Durability = "power",
    uptime: Callable[[], float] = machine_uptime,
) -> Store:
    """The store of `url`, not opened yet.

    `ttl`: in seconds. `uptime`: a clock that cannot be set. `durability`: what `sync` waits for. `read_only`: for
    reading beside a process that writes. Raises ValueError: the scheme is unknown, or the URL does not fit its scheme.
    """
    scheme, found, _ = url.partition("://")
    if not found or scheme not in BACKENDS:
        known = ", ".join(f"{name}://" for name in BACKENDS)
        raise ValueError(f"its scheme is not one of {known}")
    module, _, name = BACKENDS[scheme].partition(":")
    backend: type[Store] = getattr(importlib.import_module(module), name)
    store = backend.from_url(url, ttl=ttl, clock=clock, read_only=read_only)
    store.durability, store.uptime = durability, uptime
    return store
