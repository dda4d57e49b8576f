"""The client at the other end of a long answer: whether it is still there, while something else is waited for."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from addon.web import tasks


class DisconnectWatcher:
    """`async with DisconnectWatcher(receive, *ends)`: `gone` turns true once the client hung up or one of the
    events is set, such as that the server is stopping.

    Inside the block nothing else may call `receive`.
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
        """What the coroutine gives, or None (and it is cancelled) if the client is gone before."""
        task = tasks.spawn(coroutine, name="wait")
        try:
            await asyncio.wait((task, *self._ends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if was_cut := not task.done():
                await tasks.cancel(task)
        if task.cancelled() or (was_cut and task.exception() is not None):  # how it fails then concerns nobody
            return None
        return task.result()

    async def _hung_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
