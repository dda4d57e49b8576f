"""A store of each backend, with a clock that stands still until it is moved."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store.base import Store
from store.factory import BACKENDS, open_url
from tests.databases import database_in

URLS: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory://",
    "sqlite": database_in,
}
TTL = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=sorted(BACKENDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    store = open_url(URLS[request.param](tmp_path), ttl=TTL, clock=clock, uptime=clock)
    await store.open()
    yield store
    await store.close()
