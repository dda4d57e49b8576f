"""Makes what was written safe from a power failure, with the event loop free meanwhile."""

import asyncio
import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue

NAME = "toolgraft-disk"
"""The name of the threads."""


def flush(file: int) -> None:
    """Write the data of the file to the disk. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves the data in the disk's cache
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)


def disk_thread() -> "DiskThread":
    """The thread of the running event loop. It ends when nobody has the event loop any more."""
    loop = asyncio.get_running_loop()
    if (thread := _threads.get(loop)) is None:
        thread = _threads[loop] = DiskThread()
    return thread


class DiskThread:
    """Calls functions in a thread, in batches, one batch at a time. A batch is all that was begun in the same turn of
    the event loop, or during the batch before it: to give way to a thread takes a busy event loop more CPU than the
    flushes do.

    An executor, with a task for each batch, takes more than twice the CPU. The thread starts with the first function,
    and ends when nobody has the object any more.
    """

    def __init__(self) -> None:
        self._next: list[_Work] = []
        self._is_due = False  # or worked on
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._jobs.put, None)

    def begin(self, function: Callable[[], None]) -> asyncio.Future[None]:
        """Done when the function has returned. Raises what the function raises, and OSError if there can be no thread.
        Equal functions in one batch are called once."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._next.append((function, waiter))
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin, loop)
        waiter.add_done_callback(_retrieve)
        return waiter

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._next = self._next, []
        try:
            self._start()
        except OSError as error:
            self._finish(batch, {function: error for function, _ in batch}, loop)
            return
        self._jobs.put(lambda: self._do(batch, loop))

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=_run, args=(self._jobs,), name=NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many
                raise OSError(str(error)) from error
            self._thread = thread

    def _do(self, batch: "list[_Work]", loop: asyncio.AbstractEventLoop) -> None:
        outcomes = {function: _outcome(function) for function in dict.fromkeys(function for function, _ in batch)}
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._finish, batch, outcomes, loop)

    def _finish(self, batch: "list[_Work]", outcomes: "_Outcomes", loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = bool(self._next)
        if self._is_due:
            self._begin(loop)
        for function, waiter in batch:
            if waiter.done():  # it was cancelled
                continue
            if (error := outcomes[function]) is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


type _Work = tuple[Callable[[], None], asyncio.Future[None]]
type _Outcomes = Mapping[Callable[[], None], Exception | None]

_threads: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, DiskThread] = weakref.WeakKeyDictionary()


def _outcome(function: Callable[[], None]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def _retrieve(waiter: asyncio.Future[None]) -> None:
    """Take note of an error, which asyncio would log if nobody awaits it."""
    if not waiter.cancelled():
        waiter.exception()


def _run(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it has the object, which could not be dropped otherwise
