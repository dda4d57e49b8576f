"""The state folder, and the small files in it.

A file is written completely or not at all, and only its owner can read it. Failures are OSErrors whose messages name
the path, and never the contents.
"""

import json
import os
import shlex
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

if TYPE_CHECKING:
    import filelock


def state_folder(configured: str = "") -> Path:
    """The folder of the database, the token and the running proxy's address: `configured`, else TOOLGRAFT_HOME, else
    the user's state folder on this platform. Raises ValueError if the user has no home folder."""
    chosen = configured or os.environ.get("TOOLGRAFT_HOME") or platformdirs.user_state_dir("toolgraft")
    found = os.path.expanduser(chosen)
    if found.startswith("~"):
        raise ValueError(f"the state folder {chosen}: this user has no home folder")
    return Path(found)


def make_folder(state: Path) -> None:
    """Create the state folder for its owner alone, if it is missing. Raises OSError, also if it is not safe."""
    try:
        for folder in (*reversed(state.parents), state):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would apply the umask to parents
    except OSError as error:
        raise OSError(f"{state}: the state folder cannot be made: {error.strerror}") from error
    check_folder(state)


def check_folder(state: Path) -> None:
    """Raises OSError if another user can write to the state folder or owns a file in it: that token, address or
    database would be taken for the user's own. A missing folder is accepted."""
    if sys.platform == "win32" or not state.exists():
        return
    folder = state.resolve()
    try:
        for path in (folder, *folder.iterdir()):
            _check_owner(path)
        for parent in folder.parents:
            if parent.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise _Unsafe(f"{parent}: anyone can write to it, and put another state folder there")
    except _Unsafe as error:
        raise OSError(f"{error}. Or choose another state folder (graft_state, TOOLGRAFT_HOME)") from None
    except OSError as error:
        raise OSError(f"{state}: the state folder cannot be looked into: {error.strerror}") from error


class _Unsafe(Exception):
    pass


def _check_owner(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return  # the file was just deleted
    if found.st_uid not in (0, os.geteuid()):
        raise _Unsafe(f"{path}: belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(found.st_mode):
        raise _Unsafe(f"{path}: others can write to it. If all of it is yours: chmod go-w {shlex.quote(str(path))}")


def lock_folder(state: Path) -> "filelock.BaseFileLock":
    """Lock the state folder for one proxy, until the lock is released or the process ends. Raises OSError if another
    proxy has the lock: both would write their addresses there."""
    import filelock  # slow, and commands need no lock

    make_folder(state)
    lock = filelock.FileLock(state / "proxy.lock", mode=0o600, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise OSError(
            f"{state}: another proxy uses this state folder; stop it, or give this one its own (graft_state)"
        ) from None
    except OSError as error:
        raise OSError(f"{state}: the state folder cannot be written to: {error.strerror}") from error
    return lock


def write_address(state: Path, url: str) -> None:
    """Write the running control API's URL for the command line. Raises OSError."""
    make_folder(state)
    write_file(state / "control.url", url)


def read_address(state: Path) -> str | None:
    """The URL that the running proxy wrote, or None. Raises OSError."""
    check_folder(state)
    return read_text(state / "control.url")


def clear_address(state: Path, url: str) -> None:
    """Remove the URL if it is still this one: another proxy may have written its own. Raises OSError."""
    path = state / "control.url"
    if read_text(path) == url:
        path.unlink(missing_ok=True)


def take_place(state: Path, proxy_id: str) -> str | None:
    """Store which proxy has the lock of the state folder. Returns the previous one if it ended without `leave_place`.
    Raises OSError."""
    path = state / "proxy.id"
    before = read_text(path)
    write_file(path, proxy_id)
    return before or None


def leave_place(state: Path) -> None:
    """Note that this proxy ends with nothing left to settle. Raises OSError."""
    (state / "proxy.id").unlink(missing_ok=True)


def read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OSError(f"{path}: cannot be read: {error.strerror}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the state folder; {} if it is missing or unreadable."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def flush_names(folder: Path) -> None:
    """Flush the folder's file names to disk, because a power failure can also lose a new name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, text: str) -> None:
    """Replace a file of the state folder atomically; only its owner can read it. Raises OSError with the path."""
    try:
        # mkstemp makes files of mode 0600
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            flush_names(path.parent)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from error
