"""Writes the stderr of an MCP server's process to the log, since it may contain the process's secrets, and control
sequences that a terminal would obey."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

import anyio

_MAX_LINE = 2000  # bytes
_MAX_LINES = 50  # of one read: endless output must not block the event loop
_DRAIN_TIMEOUT = 0.5  # seconds for the last output


@asynccontextmanager
async def stderr(log_line: Callable[[str], None]) -> AsyncGenerator[TextIO]:
    """A file for the process. `log_line` is called with each line."""
    if sys.platform == "win32":  # asyncio cannot wait for its pipes
        yield sys.__stderr__ or sys.stderr
        return
    reading, writing = os.pipe()
    lines = _Lines(log_line)
    loop = asyncio.get_running_loop()
    with os.fdopen(writing, "w") as file:
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", buffering=0))
        try:
            yield file
        finally:
            file.close()
            with anyio.move_on_after(_DRAIN_TIMEOUT, shield=True):  # a child of the process may keep the pipe open
                await lines.ended.wait()
            transport.close()


class _Lines(asyncio.Protocol):
    def __init__(self, log_line: Callable[[str], None]) -> None:
        self.ended = asyncio.Event()
        self._log_line = log_line
        self._partial = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_LINE:
            lines.append(self._partial)
            self._partial = b""
        for line in lines[:_MAX_LINES]:
            self._log(line)
        if len(lines) > _MAX_LINES:
            self._log_line(f"({len(lines) - _MAX_LINES} more lines)")

    def connection_lost(self, error: Exception | None) -> None:
        self._log(self._partial)
        self.ended.set()

    def _log(self, line: bytes) -> None:
        if text := line[:_MAX_LINE].decode("utf-8", "replace").rstrip():
            self._log_line(text)
