"""The proxy's output, without which it goes on: mitmproxy ends where its log cannot be written, and stands still where
nobody reads it."""

import atexit
import contextlib
import os
import select
import sys
import threading
from typing import Any, TextIO, cast

from mitmproxy import ctx

_PATIENCE = 0.05
"""Seconds that a reader has who is slow. One who reads nothing holds a line up once, and not every line."""
_AT_ONCE = 4096
"""Bytes that a pipe takes at once when it takes any."""


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
    """What is left in a file that takes nothing would be an error at the end of the process, and its exit status."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w"))


def steady(file: TextIO) -> TextIO:
    """The file for writing lines, which are lost where it does not take them. One without a descriptor is as it is."""
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
            if self._line.endswith("\n"):  # `print` writes the line, and then its end
                line, self._line = self._line, ""
                self._write(line)
        return len(text)

    def flush(self) -> None:
        """A line is written when it has its end."""

    def _write(self, line: str) -> None:
        if self._lost:
            line = f"[{self._lost} lines are missing here: they could not be written]\n{line}"
        data = line.encode(self._file.encoding or "utf-8", "backslashreplace")
        try:
            for start in range(0, len(data), _AT_ONCE):
                piece = data[start : start + _AT_ONCE]
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
