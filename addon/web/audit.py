"""The audit log: which token did what, as JSON lines in an append-only file in the state folder.

A line is on disk before its action starts (unless `graft_durability` is `process`). So an action that cannot be logged
is not done, and an action that a crash or a power failure interrupts is in the log. If the action fails later, a second
line with the same `id` records that. Concurrent lines share a flush, which does not block the event loop.

Results of calls are frequent: their lines are written before the action too, but only flushed, together with the store,
before the result is acknowledged.
"""

import asyncio
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from addon.state_folder import flush_names, make_folder
from addon.web.access import Access
from addon.web.problems import Problem
from store import disk
from store.base import NotDurable

logger = logging.getLogger("toolgraft")

FILE = "audit.jsonl"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_encode = json.JSONEncoder().encode  # ASCII, so that no name can forge a line


class Audit:
    """`durable`: lines survive a power failure."""

    def __init__(self, state: Path, *, durable: bool) -> None:
        self._state = state
        self._path = str(state / FILE)
        self._durable = durable
        self._file: _LogFile | None = None

    @asynccontextmanager
    async def action(
        self, caller: Access, name: str, *, flush_first: bool = True, **details: Any
    ) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        """Logs an action of a caller. Raises Problem (503) before the action if it cannot be logged.

        `flush_first` False: the action begins when its line is written, and may be acknowledged once the yielded
        function has returned: the line is on disk then. That function raises NotDurable.
        """
        entry_id = secrets.token_hex(6)
        begun = False
        try:
            try:
                file = self._append(_line(entry_id, caller, name, details))
                flush = file.begin_flush() if self._durable else None
                if flush_first and flush is not None:
                    await flush
            except OSError as error:
                logger.error("%s: cannot be written: %s", self._path, error.strerror or error)
                raise Problem(
                    503, "the audit log cannot be written, so the action was not done; nothing was changed"
                ) from None
            begun = True
            yield partial(self._flushed, flush)
        except BaseException as error:
            if begun or isinstance(error, asyncio.CancelledError):
                with suppress(OSError):  # the first line is already in the log
                    self._append(_line(entry_id, caller, name, {"refused": type(error).__name__}))
            raise

    async def _flushed(self, flush: asyncio.Future[None] | None) -> None:
        if flush is None:
            return
        try:
            await flush
        except OSError as error:
            raise NotDurable(f"{self._path}: {error}") from error

    def _append(self, line: bytes) -> "_LogFile":
        file = self._file
        if file is None or file.failure is not None or not file.is_at(self._path):
            file = self._file = self._open()
        file.write(line)
        return file

    def _open(self) -> "_LogFile":
        try:
            file = _LogFile(self._path)
        except FileNotFoundError:
            make_folder(self._state)
            file = _LogFile(self._path)
        if self._durable and file.is_empty:  # once in the life of a log
            flush_names(self._state)
        return file


class _LogFile(disk.File):
    def __init__(self, path: str) -> None:
        super().__init__(os.open(path, _FLAGS, 0o600))
        status = os.fstat(self.descriptor)
        self._identity = _identity(status)
        self.is_empty = not status.st_size

    def write(self, line: bytes) -> None:
        if os.write(self.descriptor, line) < len(line):
            raise OSError("the disk is full")

    def is_at(self, path: str) -> bool:
        """Whether this file is still at the path, with the same mode and owner."""
        try:
            return _identity(os.lstat(path)) == self._identity
        except FileNotFoundError:
            return False


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid


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
