"""Which proxies of one state folder live: each locks a file there, and the kernel ends the lock with the process.

The lock is one of POSIX: unlike flock, it ends before the process's connections do. So whoever sends a request again
since its connection broke finds the process dead. Requests ask often: the files stay open, and the folder is read again
only after it has changed.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

_TICK = 2.0
"""Seconds within which two changes of a folder may have the same time."""


class Siblings:
    """The proxies of this folder, which exists. A proxy is known by its id."""

    def __init__(self, folder: Path, proxy_id: str) -> None:
        self._folder = folder
        self._proxy_id = proxy_id
        self._own: int | None = None
        self._others: dict[str, int] = {}  # never the own file: closing it would end the own lock
        self._changed = self._read_at = -1  # the folder's time, and the one for which all of it is known
        self._changed_at = 0.0  # when that time was first seen

    def join(self) -> None:
        """Live from now on. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        new = self._folder / f".{self._proxy_id}"
        self._own = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._own, fcntl.LOCK_EX)
        new.rename(self._folder / self._proxy_id)  # nobody finds it without the lock

    def leave(self) -> None:
        for name in list(self._others):
            self._close(name)
        self._read_at = -1
        if self._own is not None:
            self.forget(self._proxy_id)
            os.close(self._own)
            self._own = None

    def dead(self) -> list[str]:
        """The proxies that have ended without leaving, as far as the folder can be read."""
        with contextlib.suppress(OSError):
            changed = os.stat(self._folder).st_mtime_ns
            if changed != self._read_at:
                now = time.monotonic()
                if changed != self._changed:
                    self._changed, self._changed_at = changed, now
                is_whole = self._read() and now - self._changed_at > _TICK
                self._read_at = changed if is_whole else -1
        return [name for name, file in list(self._others.items()) if self._is_dead(name, file)]

    def forget(self, proxy_id: str) -> None:
        """What a dead proxy leaves behind has been settled."""
        (self._folder / proxy_id).unlink(missing_ok=True)

    def _read(self) -> bool:
        """Open the files of new proxies, and close those of proxies that have left. Returns False if some could not be
        opened. Raises OSError."""
        names = {name for name in os.listdir(self._folder) if name != self._proxy_id and not name.startswith(".")}
        for name in self._others.keys() - names:
            self._close(name)
        is_whole = True
        for name in names - self._others.keys():
            try:
                self._others[name] = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # it has left
                pass
            except OSError:
                is_whole = False
        return is_whole

    def _close(self, name: str) -> None:
        os.close(self._others.pop(name))

    def _is_dead(self, name: str, file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False  # it lives
        fcntl.lockf(file, fcntl.LOCK_UN)
        try:
            if os.path.samestat(os.stat(self._folder / name), os.fstat(file)):
                return True
        except OSError:
            pass  # it removed its file before it ended the lock: it has left
        self._close(name)
        self._read_at = -1
        return False
