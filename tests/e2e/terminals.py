"""A program in a terminal: tests read its screen and type."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.processes import until

_ROWS, _COLUMNS = 50, 160
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Terminal:
    """`with Terminal(command, folder, env) as terminal:`; the program is killed at the end, with its children."""

    def __init__(
        self, command: Sequence[str | Path], folder: Path, env: Mapping[str, str], columns: int = _COLUMNS
    ) -> None:
        self._screen = bytearray()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        self._popen = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=dict(env),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program has ended
            while data := os.read(self._master, 65536):
                self._screen += data

    @property
    def text(self) -> str:
        """The whole output, without colours and movements of the cursor."""
        return _CONTROL.sub(b"", bytes(self._screen)).decode("utf-8", "replace")

    @property
    def raw(self) -> str:
        """The whole output, with movements of the cursor, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", bytes(self._screen).decode("utf-8", "replace"))

    def mark(self) -> int:
        """The present end of the text, for `wait_for`."""
        return len(self.text)

    def wait_for(self, words: str, *, after: int = 0) -> None:
        """Raises AssertionError with the whole output if the words do not appear after the mark."""
        try:
            until(lambda: words in self.text[after:], f"the terminal shows {words!r}")
        except TimeoutError as error:
            raise AssertionError(f"{error}:\n{self.text}") from None

    def press(self, text: str) -> None:
        os.write(self._master, text.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, 9)
        self._popen.wait(10)
        self._reader.join(10)
        os.close(self._master)
