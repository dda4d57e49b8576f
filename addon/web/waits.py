"""Several waits at once, each of which goes on until its outcome is taken."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from addon.web import tasks


class Waits[T]:
    """`async with Waits(a, b)`: `next` gives the outcomes of the functions as they come, and calls a function anew
    when its last outcome was taken."""

    def __init__(self, *begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._begin = list(begin)
        self._tasks: dict[Callable[[], Coroutine[Any, Any, T]], asyncio.Task[T]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await tasks.cancel(*self._tasks.values())

    async def next(self) -> T:
        """The first outcome; of several, that of the function whose last one was taken earliest. Cancelling this
        cancels none of the waits."""
        for begin in self._begin:
            if begin not in self._tasks:
                self._tasks[begin] = tasks.spawn(begin(), name="one of several waits")
        done, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        begin = next(begin for begin in self._begin if self._tasks[begin] in done)
        self._begin.remove(begin)
        self._begin.append(begin)
        return self._tasks.pop(begin).result()
