"""The audit log: which token did what, as JSON lines in the state folder, to which is only ever added.

A line is written before the action: what cannot be logged is not done, and what a crash interrupts is in the log. If
the action fails after that, a second line with the same `id` says so.
"""

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from addon.control.access import Access
from addon.control.problems import Problem
from addon.control.token import make_folder

logger = logging.getLogger("toolgraft")

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_encode = json.JSONEncoder().encode  # in ASCII: no name can forge a line


class Audit:
    def __init__(self, state: Path) -> None:
        self._state = state
        self._path = state / "audit.jsonl"

    @contextmanager
    def action(self, caller: Access, name: str, **details: Any) -> Iterator[None]:
        """Around what a caller has done. Raises Problem (503) where it cannot be logged, before anything is done."""
        entry_id = secrets.token_hex(6)
        try:
            self._write(entry_id, caller, name, details)
        except OSError as error:
            logger.error("%s: cannot be written: %s", self._path, error.strerror or error)
            raise Problem(503, "the audit log cannot be written; nothing was changed") from None
        try:
            yield
        except BaseException as error:
            with suppress(OSError):  # the line before says that it was begun
                self._write(entry_id, caller, name, {"refused": type(error).__name__})
            raise

    def _write(self, entry_id: str, access: Access, action: str, details: dict[str, Any]) -> None:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": entry_id,
            "token": access.token,
            "name": access.name,
            "action": action,
            **{name: value for name, value in details.items() if value is not None},
        }
        line = _encode(entry).encode() + b"\n"
        descriptor = self._open()
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError("the disk is full")
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        """Anew for each line: somebody may have moved the file away."""
        try:
            return os.open(self._path, _FLAGS, 0o600)
        except FileNotFoundError:
            make_folder(self._state)
            return os.open(self._path, _FLAGS, 0o600)
