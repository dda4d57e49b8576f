"""Background tasks with strong references (the event loop itself keeps only weak ones), and work that ends when its
client hangs up."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

_log = logging.getLogger(__name__)
_running: set[asyncio.Task[Any]] = set()


def spawn[T](coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Run a coroutine as a background task in the running loop."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended. Their errors are logged."""
    for task in tasks:
        task.cancel()
    for task, outcome in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(outcome, Exception):
            _log.warning("%s: %r", task.get_name(), outcome)


async def while_connected[T](receive: Receive, work: Coroutine[Any, Any, T], *ends: asyncio.Event) -> T | None:
    """The result of `work`. None if the client hangs up first or one of the events is set, for example because the
    server stops: the work is cancelled, and its exceptions are ignored. Also None if something that it waits for was
    cancelled. Nothing else may call `receive` meanwhile."""
    if any(end.is_set() for end in ends):
        work.close()
        return None
    # A timeout that expires when the client hangs up keeps the work in this task, to which its generators belong.
    scope, is_over = asyncio.timeout(None), False

    def stop(_: object) -> None:
        if not is_over and scope.when() is None:
            scope.reschedule(asyncio.get_running_loop().time())

    stops = [spawn(_hung_up(receive), name="hung up"), *(spawn(end.wait(), name="an end") for end in ends)]
    for one in stops:
        one.add_done_callback(stop)
    try:
        async with scope:
            return await work
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
        is_over = True
        for one in stops:
            one.cancel()


async def _hung_up(receive: Receive) -> bool:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        _log.warning("a client's connection: %r", error)
    return True
