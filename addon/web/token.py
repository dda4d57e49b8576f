"""The state folder's small files: the bearer token, and the address of the running control API.

Both are written completely or not at all, and only their owner can read them. Failures are OSErrors whose messages name
the path, and never the token.
"""

import os
import secrets
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import filelock

from addon.settings import Settings, is_loopback

_OFF = "off"


TOKEN_PREFIX = "tg_"
"""The prefix of tokens from `toolgraft token new`. The proxy's own token never has it."""


def own_token(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """The token of a starting proxy: `load_token`, but a token from `toolgraft token new` is refused, because the
    proxy's own token has all rights. Raises ValueError, OSError."""
    token = load_token(settings, environ)
    if token is not None and token.startswith(TOKEN_PREFIX):
        where = "graft_token" if settings.token else "TOOLGRAFT_TOKEN"
        raise ValueError(f"{where}: holds a token of `toolgraft token new`, which cannot be the proxy's own: unset it")
    return token


def load_token(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """The control API's token: `graft_token`, else TOOLGRAFT_TOKEN, else the token in the state folder, which is
    created if it is missing. None: `off`.

    Raises OSError if the folder or the file cannot be used, ValueError if TOOLGRAFT_TOKEN cannot be a token.
    """
    if settings.token:
        return None if settings.token == _OFF else settings.token
    given = environ.get("TOOLGRAFT_TOKEN", "")
    if not given:
        return _token_in_folder(settings.state)
    if given == _OFF:
        if settings.control is not None and not is_loopback(settings.control[0]):
            raise ValueError("TOOLGRAFT_TOKEN: `off` fits only a loopback graft_control")
        return None
    if not _is_valid_token(given):
        raise ValueError("TOOLGRAFT_TOKEN: must be printable ASCII without spaces")
    return given


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


def lock_folder(state: Path) -> filelock.BaseFileLock:
    """Lock the state folder for one proxy, until the lock is released or the process ends. Raises OSError if another
    proxy has the lock: both would write their addresses there."""
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
    return _read(state / "control.url")


def clear_address(state: Path, url: str) -> None:
    """Remove the URL if it is still this one: another proxy may have written its own. Raises OSError."""
    path = state / "control.url"
    if _read(path) == url:
        path.unlink(missing_ok=True)


def take_place(state: Path, proxy_id: str) -> str | None:
    """Store which proxy has the lock of the state folder. Returns the previous one if it ended without `leave_place`.
    Raises OSError."""
    path = state / "proxy.id"
    before = _read(path)
    write_file(path, proxy_id)
    return before or None


def leave_place(state: Path) -> None:
    """Note that this proxy ends with nothing left to settle. Raises OSError."""
    (state / "proxy.id").unlink(missing_ok=True)


def _token_in_folder(state: Path) -> str:
    make_folder(state)
    path = state / "token"
    try:
        # Two proxies that start at the same time must use the same token.
        with filelock.FileLock(state / "token.lock", mode=0o600, timeout=10):
            token = _read(path)
            if token is None:
                token = secrets.token_urlsafe(32)
                write_file(path, token)
    except filelock.Timeout as error:
        raise OSError(f"{error.lock_file}: held by another process") from error
    except OSError as error:
        if error.errno is None:
            raise  # the error already has its message
        raise OSError(f"{state}: the token cannot be kept here: {error.strerror}") from error
    if not token or not _is_valid_token(token):
        raise OSError(f"{path}: holds no token; delete it, and the next start makes a new one")
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return token


def _is_valid_token(token: str) -> bool:
    return token.isascii() and token.isprintable() and " " not in token


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OSError(f"{path}: cannot be read: {error.strerror}") from error


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
