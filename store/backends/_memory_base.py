"""What every part of the store in memory stands on: whether it is open."""

import time
from collections.abc import Callable
from typing import ClassVar

from store.backends._waiters import Waiters
from store.base import Store, StoreUnavailable


class MemoryBase(Store):
    suspends: ClassVar[bool] = False

    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self._is_open = False
        self._waiters = Waiters()

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._waiters.close()

    async def ping(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the store in memory is not open")
