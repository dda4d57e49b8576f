"""Lets the proxy run on without its output: mitmproxy ends if its log cannot be written, and blocks if nobody reads
it."""

import atexit
import contextlib
import os
import select
import sys
import threading
from typing import Any, TextIO, cast

from mitmproxy import ctx

_PATIENCE = 0.05
"""Seconds to wait for a slow reader. If nothing is read, only the first line waits."""
_CHUNK = 4096
"""Bytes that a writable pipe accepts without blocking."""


class Stdout:
    def load(self, loader: object) -> None:
        termlog: Any = getattr(ctx.master, "_termlog_addon", None)
        if termlog is not None:
            termlog.logger.file = steady(termlog.logger.file)
        dumper: Any = ctx.master.addons.get("dumper")
        if dumper is not None:
            dumper.outfp = steady(dumper.outfp)
        atexit.register(_leave)


def _leave() -> None:
    """Unwritten output would be an error at the end of the process and change its exit status."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w"))


def steady(file: TextIO) -> TextIO:
    """Wraps a file so that lines it does not accept are dropped. A file without a descriptor is returned as it is."""
    try:
        descriptor = file.fileno()
    except (OSError, ValueError, AttributeError):
        return file
    with contextlib.suppress(OSError):
        file.flush()
    return cast(TextIO, _Steady(file, descriptor))


class _Steady:
    def __init__(self, file: TextIO, descriptor: int) -> None:
        self._file = file
        self._descriptor = descriptor
        self._line = ""
        self._lost = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._line += text
            if self._line.endswith("\n"):  # `print` writes the line and its end separately
                line, self._line = self._line, ""
                self._write(line)
        return len(text)

    def draw(self, text: str) -> None:
        """Write what is no line, at once, or leave it out."""
        data = text.encode(self._file.encoding or "utf-8", "replace")
        with contextlib.suppress(OSError), self._lock:
            if select.select([], [self._descriptor], [], 0)[1]:
                os.write(self._descriptor, data)

    def flush(self) -> None:
        """Does nothing: each complete line is written at once."""

    def _write(self, line: str) -> None:
        if self._lost:
            line = f"[{self._lost} lines are missing here: they could not be written]\n{line}"
        data = line.encode(self._file.encoding or "utf-8", "backslashreplace")
        try:
            for start in range(0, len(data), _CHUNK):
                piece = data[start : start + _CHUNK]
                while piece:
                    if not select.select([], [self._descriptor], [], 0 if self._lost else _PATIENCE)[1]:
                        raise BlockingIOError
                    piece = piece[os.write(self._descriptor, piece) :]
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
