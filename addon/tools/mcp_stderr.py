"""What an MCP server's process writes to stderr, as lines of the log: a terminal would obey it, and it may hold the
secrets that the process was given."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

import anyio

_LONGEST = 2000  # bytes of a line
_MOST = 50  # lines that are taken of what comes at once: a server that writes without end must stop nobody
_LAST_WORDS = 0.5  # seconds in which what is still on its way comes


@asynccontextmanager
async def stderr(say: Callable[[str], None]) -> AsyncGenerator[TextIO]:
    """A file for the process. `say` is told of each line."""
    if sys.platform == "win32":  # its pipes cannot be waited for
        yield sys.__stderr__ or sys.stderr
        return
    reading, writing = os.pipe()
    lines = _Lines(say)
    loop = asyncio.get_running_loop()
    with os.fdopen(writing, "w") as file:
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", buffering=0))
        try:
            yield file
        finally:
            file.close()
            with anyio.move_on_after(_LAST_WORDS, shield=True):  # a process that it has left behind may go on
                await lines.over.wait()
            transport.close()


class _Lines(asyncio.Protocol):
    def __init__(self, say: Callable[[str], None]) -> None:
        self.over = asyncio.Event()
        self._say = say
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > _LONGEST:
            lines.append(self._begun)
            self._begun = b""
        for line in lines[:_MOST]:
            self._tell(line)
        if len(lines) > _MOST:
            self._say(f"({len(lines) - _MOST} more lines)")

    def connection_lost(self, error: Exception | None) -> None:
        self._tell(self._begun)
        self.over.set()

    def _tell(self, line: bytes) -> None:
        if text := line[:_LONGEST].decode("utf-8", "replace").rstrip():
            self._say(text)
