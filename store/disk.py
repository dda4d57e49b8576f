"""Makes what was written safe from a power failure, with the event loop free meanwhile."""

import asyncio
import contextlib
import fcntl
import os
import weakref
from concurrent.futures import ThreadPoolExecutor


class File:
    """An open file whose data is flushed to the disk in a thread. All who ask during a flush share the next one. The
    descriptor stays open, and is closed when nobody has the object any more: the kernel reports an error once to each
    opening."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.failure: OSError | None = None
        """Of the first flush that failed. The kernel may have dropped the data that it could not write: a later flush
        that succeeds proves nothing. So none does."""
        self._thread = ThreadPoolExecutor(1, "toolgraft-disk")
        self._is_busy = False
        self._next: asyncio.Future[None] | None = None
        weakref.finalize(self, os.close, descriptor)

    def begin_flush(self) -> asyncio.Future[None]:
        """Done when the file's data, as it is now, is on disk. Raises OSError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if not self._is_busy:
                self._is_busy = True
                self._next.get_loop().call_soon(self._begin)  # whoever asks until then shares it
        waiter = asyncio.shield(self._next)
        waiter.add_done_callback(_retrieve)
        return waiter

    def _begin(self) -> None:
        assert self._next is not None
        batch, self._next = self._next, None
        try:
            self._thread.submit(self._flush, batch)
        except RuntimeError as error:  # there are too many threads
            self._end(batch, OSError(str(error)))

    def _flush(self, batch: asyncio.Future[None]) -> None:
        error = None
        try:
            flush(self.descriptor)
        except OSError as failure:
            error = failure
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            batch.get_loop().call_soon_threadsafe(self._end, batch, error)

    def _end(self, batch: asyncio.Future[None], error: OSError | None) -> None:
        self.failure = self.failure or error
        if self.failure is None:
            batch.set_result(None)
        else:
            batch.set_exception(self.failure)
            batch.exception()  # whoever waited may have left
        self._is_busy = self._next is not None
        if self._is_busy:
            self._begin()


def flush(file: int) -> None:
    """Write the data of the file to the disk. Raises OSError."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):  # macOS: an fsync leaves the data in the disk's cache
        fcntl.fcntl(file, full)
    else:
        os.fdatasync(file)


def _retrieve(waiter: asyncio.Future[None]) -> None:
    """Take note of an error, which asyncio would log if nobody awaits it."""
    if not waiter.cancelled():
        waiter.exception()
