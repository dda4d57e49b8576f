"""Flushes files in a small process of its own: a busy event loop loses more CPU to a thread than the flushes take,
because the two take the interpreter's lock from each other."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from store import flusher

COMMAND = [sys.executable, "-I", "-S", str(Path(flusher.__file__))]


class FlushProcess:
    """One request at a time. Ends when nobody has the object or its event loop any more."""

    def __init__(self, done: Callable[[list[OSError | None]], None], ended: Callable[[], None]) -> None:
        """`done` gets the outcome of a request, for each file. `ended` is called if the process ends before `close`.
        Raises OSError."""
        self._done, self._ended = done, ended
        self._awaited = 0
        self._answer = b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                process = _start(theirs)
            except BaseException:
                self._socket.close()
                raise
        self._end = weakref.finalize(self, _end, self._socket, process)
        self._end.atexit = False  # the socket ends with the proxy
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def flush(self, files: Sequence[int]) -> None:
        """Raises OSError."""
        socket.send_fds(self._socket, [bytes(len(files))], files)
        self._awaited, self._answer = len(files), b""

    def close(self) -> None:
        """What was asked for gets no answer any more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._end()

    def _read(self) -> None:
        try:
            answer = self._socket.recv(flusher.MOST)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._ended()
            return
        self._answer += answer
        if len(self._answer) == self._awaited:
            self._done([OSError(number, os.strerror(number)) if number else None for number in self._answer])


def _start(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    """In its own session, so that it does not receive the terminal's signals to the proxy."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(COMMAND, stdin=theirs.fileno(), stdout=quiet, stderr=quiet, cwd="/", start_new_session=True)


def _end(connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    connection.close()
    # It may still wait for the disk. At the end of Python, when there are no new threads, so does init.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name="end of the flusher", daemon=True).start()
