"""Real processes for the tests: started, watched by their output, and stopped by their id."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0
"""Seconds of each wait, far more than any test needs, because the machine may be busy."""

live: list["Process"] = []
"""The running processes: a failed test shows their output."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without the user's proxies, keys and settings, except the search path."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
    } | more


def until[T](look: Callable[[], T], what: str, timeout: float = TIMEOUT) -> T:
    """The first true result of `look`. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}")
        pause.wait(0.02)
    return found


class Process:
    """A process with its output, read line by line as it arrives, stdout and stderr together."""

    def __init__(self, name: str, command: Iterable[str | Path], env: Mapping[str, str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._popen = subprocess.Popen(
            [str(word) for word in command],
            env=dict(env),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), daemon=True)
        self._reader.start()
        live.append(self)

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log(self) -> str:
        with self._changed:
            return "\n".join(self.lines)

    def mark(self) -> int:
        """The present end of the log, for `wait_for`."""
        with self._changed:
            return len(self.lines)

    def wait_for(self, pattern: str, *, after: int = 0, timeout: float = TIMEOUT) -> str:
        """The first line after the mark with the pattern. Raises AssertionError if no such line can come."""
        found: list[str] = []

        def look() -> bool:
            found.extend(line for line in self.lines[after:] if re.search(pattern, line))
            return bool(found) or self._ended

        with self._changed:
            self._changed.wait_for(look, timeout)
        assert found, f"{self.name} did not say {pattern!r}:\n{self.log}"
        return found[0]

    def send(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait for the end, when all output is in `log`. Returns the exit status."""
        status = self._popen.wait(timeout)
        self._reader.join(timeout)
        self._close()
        return status

    def stop(self) -> int:
        """Ask the process to end, and kill it if it does not. Returns the exit status."""
        if self._popen.poll() is None:
            self._popen.terminate()
        try:
            return self.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self.wait(10)

    def _close(self) -> None:
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self in live:
            live.remove(self)


def mitmdump() -> Path:
    """The mitmdump of this interpreter."""
    return Path(sys.executable).with_name("mitmdump")
