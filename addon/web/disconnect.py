"""Notices that a client hangs up while its long answer waits for something else."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from addon.web import tasks


class DisconnectWatcher:
    """`async with DisconnectWatcher(receive, *ends)`: `gone` becomes true when the client hangs up or one of the events
    is set, for example because the server stops.

    Nothing else may call `receive` inside the block.
    """

    def __init__(self, receive: Receive, *ends: asyncio.Event) -> None:
        self._receive = receive
        self._events = ends

    async def __aenter__(self) -> Self:
        self._ends: tuple[asyncio.Task[Any], ...] = (
            tasks.spawn(self._hung_up(), name="hung up"),
            *(tasks.spawn(event.wait(), name="an end") for event in self._events),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await tasks.cancel(*self._ends)

    @property
    def gone(self) -> bool:
        return any(end.done() for end in self._ends)

    async def wait[T](self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The coroutine's result. If the client goes first, the coroutine is cancelled and the result is None."""
        task = tasks.spawn(coroutine, name="wait")
        try:
            await asyncio.wait((task, *self._ends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if was_cut := not task.done():
                await tasks.cancel(task)
        if task.cancelled() or (
            was_cut and task.exception() is not None
        ):  # the error of a cancelled task is irrelevant
            return None
        return task.result()

    async def _hung_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
