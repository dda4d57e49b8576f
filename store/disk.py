"""Flushes files to the disk without blocking the event loop."""

import asyncio
import contextlib
import fcntl
import os
import weakref
from concurrent.futures import ThreadPoolExecutor


class File:
    """An open file whose data is flushed to the disk in a thread. Requests during a flush share the next flush. The
    descriptor stays open for the object's lifetime: the kernel reports an error once to each open descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.failure: OSError | None = None
        """The error of the first flush that failed. All later flushes fail as well: the kernel may have dropped the
        data that it could not write."""
        self._thread = ThreadPoolExecutor(1, "toolgraft-disk")
        self._is_busy = False
        self._next: asyncio.Future[None] | None = None
        weakref.finalize(self, os.close, descriptor)

    def begin_flush(self) -> asyncio.Future[None]:
        """Returns a future that is done when the file's present data is on disk. Raises OSError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if not self._is_busy:
                self._is_busy = True
                self._next.get_loop().call_soon(self._begin)  # requests until then share it
        waiter = asyncio.shield(self._next)
        waiter.add_done_callback(_retrieve)
        return waiter

    def _begin(self) -> None:
        assert self._next is not None
        batch, self._next = self._next, None
        try:
            self._thread.submit(self._flush, batch)
        except RuntimeError as error:  # too many threads
            self._end(batch, OSError(str(error)))

    def _flush(self, batch: asyncio.Future[None]) -> None:
        error = None
        try:
            flush(self.descriptor)
        except OSError as failure:
            error = failure
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            batch.get_loop().call_soon_threadsafe(self._end, batch, error)

    def _end(self, batch: asyncio.Future[None], error: OSError | None) -> None:
        self.failure = self.failure or error
        if self.failure is None:
            batch.set_result(None)
        else:
            batch.set_exception(self.failure)
            batch.exception()  # retrieved, in case nobody awaits it
        self._is_busy = self._next is not None
        if self._is_busy:
            self._begin()


def flush(file: int) -> None:
    """Flush the file of this descriptor. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves the data in the disk's cache
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)


def _retrieve(waiter: asyncio.Future[None]) -> None:
    """Retrieve an error, which asyncio would otherwise log if nobody awaits it."""
    if not waiter.cancelled():
        waiter.exception()
