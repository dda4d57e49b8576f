"""Notices that a client hangs up while its long answer waits for something else."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from addon.web import tasks

_log = logging.getLogger(__name__)


class EndEvent(asyncio.Event):
    """An event with callbacks: they cost less than a task for each waiter. They are called once, when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: set[Callable[[], None]] = set()

    def set(self) -> None:
        super().set()
        callbacks, self._callbacks = self._callbacks, set()
        for callback in callbacks:
            callback()

    def add_callback(self, callback: Callable[[], None]) -> None:
        """A callback for an event that is set already is called at once."""
        if self.is_set():
            callback()
        else:
            self._callbacks.add(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        self._callbacks.discard(callback)


class DisconnectWatcher:
    """`async with DisconnectWatcher(receive, *ends)`: `gone` becomes true when the client hangs up or one of the events
    is set, for example because the server stops.

    Nothing else may call `receive` inside the block.
    """

    def __init__(self, receive: Receive, *ends: EndEvent) -> None:
        self.gone = False
        self._receive = receive
        self._ends = ends
        self._scope: asyncio.Timeout | None = None  # of the coroutine that runs

    async def __aenter__(self) -> Self:
        self._receiving = tasks.spawn(self._hung_up(), name="hung up")
        for end in self._ends:
            end.add_callback(self._go)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for end in self._ends:
            end.remove_callback(self._go)
        self._receiving.cancel()

    async def wait[T](self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The coroutine's result. If the client goes first, the coroutine is cancelled and the result is None, whatever
        the coroutine then raises. Also None if something that it waits for was cancelled."""
        if self.gone:
            coroutine.close()
            return None
        # A deadline that comes when the client goes: no task is needed for the coroutine.
        self._scope = scope = asyncio.timeout(None)
        try:
            async with scope:
                return await coroutine
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None
        except Exception:
            if not scope.expired():
                raise
            return None
        finally:
            self._scope = None

    async def _hung_up(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception as error:
            _log.warning("a client's connection: %r", error)
        self._go()

    def _go(self) -> None:
        if self.gone:
            return
        self.gone = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())
