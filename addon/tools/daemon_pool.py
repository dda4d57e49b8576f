"""Daemon threads for tools that are plain functions: a function that hangs blocks neither its caller nor the exit.

The standard library's pools wait for their threads when the process ends.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

from addon.tools.base import ToolError, error_text

MAX_IDLE = 16  # idle threads that are kept; further threads end with their call
MAX_THREADS = 256


class NoFreeThread(RuntimeError):
    """All threads are busy, most likely hanging, or the pool is closed."""


class DaemonPool:
    """Runs functions in up to MAX_THREADS daemon threads. For one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0
        self._closed = False

    async def run[T](self, function: Callable[[], T]) -> T:
        """Run a function and return its result. Cancelling leaves the function running and drops its outcome.

        SystemExit and KeyboardInterrupt are raised as ToolError, because they would end the event loop. Raises
        NoFreeThread.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    result = context.run(function)
                except StopIteration as e:  # a future does not accept it
                    error = RuntimeError(f"StopIteration: {e}")
                except (Exception, asyncio.CancelledError) as e:
                    error = e
                except BaseException as e:
                    error = ToolError(error_text(e))
                    error.__cause__ = e
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        self._submit(work)
        return await future

    def close(self) -> None:
        """End the idle threads now, and the others after their call. Does not wait."""
        with self._lock:
            self._closed = True
            for _ in range(self._count):
                self._work.put(None)

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise NoFreeThread("the threads are closed")
            if self._idle:
                self._idle -= 1
                self._work.put(work)
                return
            if self._count >= MAX_THREADS:
                raise NoFreeThread(f"{self._count} calls are running in threads")
            self._count += 1
        threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True).start()

    def _serve(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            work()
            work = None  # drops references to the call
            with self._lock:
                if self._closed or self._idle >= MAX_IDLE:
                    break
                self._idle += 1
            work = self._work.get()
        with self._lock:
            self._count -= 1
