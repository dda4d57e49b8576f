"""Which proxies of one state folder live: each locks a file there, and the kernel ends the lock with the process.

The lock is one of POSIX: unlike flock, it ends before the process's connections do. So whoever sends a request again
since its connection broke finds the process dead.
"""

import fcntl
import os
from pathlib import Path


class Siblings:
    """The proxies of this folder, which exists. A proxy is known by its id."""

    def __init__(self, folder: Path, proxy_id: str) -> None:
        self._folder = folder
        self._proxy_id = proxy_id
        self._own: int | None = None

    def join(self) -> None:
        """Live from now on. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        new = self._folder / f".{self._proxy_id}"
        self._own = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._own, fcntl.LOCK_EX)
        new.rename(self._folder / self._proxy_id)  # nobody finds it without the lock

    def leave(self) -> None:
        if self._own is not None:
            self.forget(self._proxy_id)
            os.close(self._own)
            self._own = None

    def dead(self) -> list[str]:
        """The proxies that have ended without leaving, as far as the folder can be read."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in names if name != self._proxy_id and not name.startswith(".") and self._is_dead(name)]

    def forget(self, proxy_id: str) -> None:
        """What a dead proxy leaves behind has been settled."""
        (self._folder / proxy_id).unlink(missing_ok=True)

    def _is_dead(self, name: str) -> bool:
        # never the own file: closing it would end the own lock
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False  # it has left
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False  # it lives
        finally:
            os.close(file)
        return True
