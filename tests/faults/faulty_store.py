"""A store in which each call can fail, for tests of the consequences."""

import asyncio
import inspect
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from store.backends.memory import MemoryStore
from store.base import StoreBusy, StoreUnavailable

PLACE = "/home/alice/graft.db"
"""The path of the database, which only the log may contain."""


def no_space() -> Exception:
    return StoreUnavailable(f"store {PLACE}: the disk is full")


def busy() -> Exception:
    return StoreBusy(f"store {PLACE}: another program holds it")


def unforeseen() -> Exception:
    return sqlite3.OperationalError(f"{PLACE}: disk I/O error")


class Fault(NamedTuple):
    """`error` None: the call is only slow. `lasts`: all further calls of the request fail as well."""

    error: Callable[[], Exception] | None
    lasts: bool = False


NO_SPACE = Fault(no_space, lasts=True)
BUSY = Fault(busy)
UNFORESEEN = Fault(unforeseen)
SLOW = Fault(None)


class FaultyStore:
    """A store in memory that counts its calls. One call, or all from one on, can fail."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.called: list[str] = []
        self.raised: list[Exception] = []
        self.failed: list[str] = []
        self._fault = Fault(None)
        self._number = -1
        self._watched = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return self._counted(name, found) if inspect.iscoroutinefunction(found) else found

    def _counted(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            if not self._watched:
                return await method(*arguments, **named)
            number = len(self.called)
            self.called.append(name)
            if number == self._number or (self._fault.lasts and number > self._number >= 0):
                self.failed.append(name)
                await self._fail()
            return await method(*arguments, **named)

        return counted

    async def _fail(self) -> None:
        if self._fault.error is not None:
            self.raised.append(self._fault.error())
            raise self.raised[-1]
        for _ in range(5):
            await asyncio.sleep(0)

    def begin(self) -> None:
        self.called, self.raised, self.failed = [], [], []

    def fail(self, fault: Fault, number: int) -> None:
        """Fail at the call with this number."""
        self._fault, self._number = fault, number

    def recover(self) -> None:
        self._number = -1

    @contextmanager
    def watched(self) -> Iterator[None]:
        self._watched = True
        try:
            yield
        finally:
            self._watched = False


def check_log(records: list[logging.LogRecord], raised: list[Exception], refused: list[str]) -> None:
    messages = "".join(logging.Formatter().format(record) for record in records)
    assert PLACE in messages or not refused, "the log says where"
    for record in records:
        if record.exc_info:
            assert record.exc_info[1] in raised, record.getMessage()
        assert "never retrieved" not in record.getMessage(), record.getMessage()
