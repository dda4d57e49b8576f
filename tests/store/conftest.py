"""A store of each backend, with a clock that stands still until it is moved."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from store.base import Store
from store.factory import open_url
from tests.clock import Clock, clock
from tests.databases import database_in
from tests.store import servers

__all__ = ["Clock", "clock"]

URLS: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory://",
    "sqlite": database_in,
    "redis": lambda folder: servers.new_url(),
}
SCHEMES = ["memory", "sqlite", servers.REDIS]
"""Parameters: the keys of URLS."""

TTL = 1000.0


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    servers.stop_all()


@pytest.fixture(
    params=[
        *SCHEMES,
        pytest.param("redis-cluster", marks=[pytest.mark.e2e, pytest.mark.long]),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    url = URLS[request.param](tmp_path) if request.param in URLS else servers.new_cluster_url()
    store = open_url(url, ttl=TTL, clock=clock, uptime=clock)
    await store.open()
    yield store
    await store.close()
