"""The audit log: which token did what, as JSON lines in an append-only file in the state folder.

A line is on disk before its action starts (unless `graft_durability` is `process`). So an action that cannot be logged
is not done, and an action that a crash or a power failure interrupts is in the log. If the action fails later, a second
line with the same `id` says so. Lines that come at the same time share a flush, which takes milliseconds in a thread.
"""

import asyncio
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from addon.web.access import Access
from addon.web.problems import Problem
from addon.web.token import flush_names, make_folder
from store import disk
from store.disk import DiskThread

logger = logging.getLogger("toolgraft")

FILE = "audit.jsonl"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_encode = json.JSONEncoder().encode  # in ASCII: no name can forge a line


class Audit:
    """`durable`: lines survive a power failure."""

    def __init__(self, state: Path, *, durable: bool) -> None:
        self._state = state
        self._durable = durable
        self._writer = DiskThread("toolgraft-audit", partial(_append, state, durable=True))

    @asynccontextmanager
    async def action(self, caller: Access, name: str, **details: Any) -> AsyncGenerator[None]:
        """Logs an action of a caller. Raises Problem (503) before the action if it cannot be logged."""
        entry_id = secrets.token_hex(6)
        begun = False
        try:
            if error := await self._write(_line(entry_id, caller, name, details)):
                logger.error("%s: cannot be written: %s", self._state / FILE, error.strerror or error)
                raise Problem(503, "the audit log cannot be written, so the action was not done; nothing was changed")
            begun = True
            yield
        except BaseException as error:
            if begun or isinstance(error, asyncio.CancelledError):
                with suppress(OSError):  # the first line is already in the log
                    _append(self._state, [_line(entry_id, caller, name, {"refused": type(error).__name__})])
            raise

    async def _write(self, line: bytes) -> OSError | None:
        """Append a line. Returns the error, if any."""
        try:
            if self._durable:
                await self._writer.add(line)
            else:
                _append(self._state, [line])
        except OSError as error:
            return error
        return None


def _append(state: Path, lines: Sequence[bytes], durable: bool = False) -> None:
    descriptor = _open(state)
    try:
        is_new = os.fstat(descriptor).st_size == 0
        text = b"".join(lines)
        if os.write(descriptor, text) < len(text):
            raise OSError("the disk is full")
        if durable:
            disk.flush(descriptor)
            if is_new:
                flush_names(state)
    finally:
        os.close(descriptor)


def _open(state: Path) -> int:
    """Opened for each write, because somebody may have moved the file away."""
    path = state / FILE
    try:
        return os.open(path, _FLAGS, 0o600)
    except FileNotFoundError:
        make_folder(state)
        return os.open(path, _FLAGS, 0o600)


def _line(entry_id: str, access: Access, action: str, details: dict[str, Any]) -> bytes:
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": entry_id,
        "token": access.token,
        "name": access.name,
        "action": action,
        **{name: value for name, value in details.items() if value is not None},
    }
    return _encode(entry).encode() + b"\n"
