"""Makes what was written safe from a power failure, with the event loop free meanwhile."""

import asyncio
import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue


def flush(file: int) -> None:
    """Write the data of the file to the disk. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves the data in the disk's cache
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)


class DiskThread[T]:
    """Calls `work` with batches of items, one batch at a time, in a thread. A batch is all that was added in the same
    turn of the event loop, or while the batch before it was worked on.

    An executor, with a task for each batch, takes more than twice the CPU. The thread begins with the first item, and
    ends with `close`, or when nobody has the object any more.
    """

    def __init__(self, name: str, work: Callable[[list[T]], None]) -> None:
        self._name = name
        self._work = work
        self._next: list[tuple[T, asyncio.Future[None]]] = []
        self._is_due = False  # or worked on
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        weakref.finalize(self, self._jobs.put, None)

    async def add(self, item: T) -> None:
        """Return when `work` has returned. Raises what `work` raises, and OSError if there can be no thread."""
        await self.begin(item)

    def begin(self, item: T) -> asyncio.Future[None]:
        """As `add`, to be awaited later, or not at all."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._next.append((item, waiter))
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin, loop)
        waiter.add_done_callback(_retrieve)
        return waiter

    def close(self) -> None:
        """End the thread, and wait for it. What was added and is not begun fails."""
        self._is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._next = self._next, []
        try:
            self._start()
        except OSError as error:
            self._finish(batch, error, loop)
            return
        self._jobs.put(lambda: self._do(batch, loop))

    def _start(self) -> None:
        if self._is_closed:
            raise OSError(f"the thread {self._name} has ended")
        if self._thread is None:
            thread = threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many
                raise OSError(str(error)) from error
            self._thread = thread

    def _do(self, batch: list[tuple[T, asyncio.Future[None]]], loop: asyncio.AbstractEventLoop) -> None:
        error: Exception | None = None
        try:
            self._work([item for item, _ in batch])
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._finish, batch, error, loop)

    def _finish(
        self, batch: list[tuple[T, asyncio.Future[None]]], error: Exception | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._is_due = bool(self._next)
        if self._is_due:
            self._begin(loop)
        for _, waiter in batch:
            if waiter.done():  # it was cancelled
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


def _retrieve(waiter: asyncio.Future[None]) -> None:
    """Take note of an error, which asyncio would log if nobody awaits it."""
    if not waiter.cancelled():
        waiter.exception()


def _run(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it has the object, which could not be dropped otherwise
