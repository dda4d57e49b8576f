"""Makes what was written safe from a power failure, with the event loop free meanwhile."""

import asyncio
import contextlib
import fcntl
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from store.flush_process import FlushProcess
from store.flusher import flush as flush

logger = logging.getLogger("toolgraft")

NAME = "toolgraft-disk"
"""The name of the threads."""


class File:
    """An open file. It is closed when nobody has the object any more: not before the end of a flush."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        try:
            self.lent = _opened_again(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        weakref.finalize(self, _close, descriptor, self.lent)
        self.failure: OSError | None = None
        """Of the first flush that failed. The kernel may have dropped the data that it could not write: a later flush
        that succeeds proves nothing. So none does."""


def begin_flush(file: File) -> asyncio.Future[None]:
    """Done when the file's data, as it is now, is on disk. Raises OSError."""
    return _disk().begin(file)


def use_process() -> None:
    """From now on the files of this event loop are flushed by a process, which starts with the first flush."""
    _disk().uses_process = True


class Disk:
    """Flushes files in batches, one batch at a time. A batch is all that was begun in the same turn of the event loop,
    or during the batch before it: to hand over work takes a busy event loop more CPU than the flushes do.

    They are done by a process if that is asked for, and by a thread as long as there is no process.
    """

    def __init__(self) -> None:
        self.uses_process = False
        self._next: _Batch = {}
        self._batch: _Batch = {}
        self._is_due = False  # or worked on
        self._thread = DiskThread()
        self._process: FlushProcess | None = None

    def begin(self, file: File) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._next.setdefault(file, []).append(waiter)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin)
        waiter.add_done_callback(_retrieve)
        return waiter

    def _begin(self) -> None:
        self._batch, self._next = self._next, {}
        if self.uses_process:
            try:
                if self._process is None:
                    self._process = FlushProcess(self._finish, self._go_on_without_process)
                self._process.flush([file.lent for file in self._batch])
            except OSError as error:
                self._go_on_without_process(error)
        else:
            self._flush_in_thread()

    def _flush_in_thread(self) -> None:
        try:
            self._thread.flush([file.descriptor for file in self._batch], self._finish)
        except OSError as error:
            self._end_batch([error] * len(self._batch))

    def _go_on_without_process(self, error: OSError | None = None) -> None:
        logger.warning("files are flushed by a thread from now on: %s", error or "the process for it has ended")
        self.uses_process = False
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._batch:
            self._flush_in_thread()

    def _finish(self, outcomes: Sequence[OSError | None]) -> None:
        for file, error in zip(self._batch, outcomes, strict=True):
            file.failure = file.failure or error
        self._end_batch([file.failure for file in self._batch])

    def _end_batch(self, outcomes: Sequence[OSError | None]) -> None:
        batch, self._batch = self._batch, {}
        self._is_due = bool(self._next)
        if self._is_due:
            self._begin()
        for waiters, error in zip(batch.values(), outcomes, strict=True):
            for waiter in waiters:
                if waiter.done():  # it was cancelled
                    continue
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)


class DiskThread:
    """Flushes files in a thread. An executor, with a task for each batch, takes more than twice the CPU. The thread
    starts with the first request, and ends when nobody has the object any more."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._jobs.put, None)

    def flush(self, files: Sequence[int], done: "_Done") -> None:
        """`done` is called in the event loop, with the outcome for each file. Raises OSError if there can be no
        thread."""
        if self._thread is None:
            thread = threading.Thread(target=_run, args=(self._jobs,), name=NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many
                raise OSError(str(error)) from error
            self._thread = thread
        loop = asyncio.get_running_loop()
        self._jobs.put(lambda: _flush_all(files, done, loop))


type _Batch = dict[File, list[asyncio.Future[None]]]
type _Done = Callable[[Sequence[OSError | None]], None]

_disks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Disk] = weakref.WeakKeyDictionary()


def _disk() -> Disk:
    loop = asyncio.get_running_loop()
    if (disk := _disks.get(loop)) is None:
        disk = _disks[loop] = Disk()
    return disk


def _opened_again(descriptor: int) -> int:
    """For another process: the kernel reports an error once to each opening, and that process may end before it tells.
    Without /dev/fd it is the same opening."""
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    try:
        return os.open(f"/dev/fd/{descriptor}", mode | os.O_CLOEXEC)
    except OSError:
        return os.dup(descriptor)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _retrieve(waiter: asyncio.Future[None]) -> None:
    """Take note of an error, which asyncio would log if nobody awaits it."""
    if not waiter.cancelled():
        waiter.exception()


def _run(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it has the object, which could not be dropped otherwise


def _flush_all(files: Sequence[int], done: _Done, loop: asyncio.AbstractEventLoop) -> None:
    outcomes = [_outcome(file) for file in files]
    with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        loop.call_soon_threadsafe(done, outcomes)


def _outcome(file: int) -> OSError | None:
    try:
        flush(file)
    except OSError as error:
        return error
    return None
