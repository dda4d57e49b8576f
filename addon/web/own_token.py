"""The control API's own token: from an option, the environment or the state folder."""

import secrets
from collections.abc import Mapping
from pathlib import Path

import filelock

from addon.settings import Settings
from addon.state_folder import make_folder, read_text, write_file
from addon.urls import is_loopback

_OFF = "off"


TOKEN_PREFIX = "tg_"
"""The prefix of tokens from `toolgraft token new`. The proxy's own token never has it."""


def token_at_start(settings: Settings, environ: Mapping[str, str]) -> str | None:
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


def _token_in_folder(state: Path) -> str:
    make_folder(state)
    path = state / "token"
    try:
        # Two proxies that start at the same time must use the same token.
        with filelock.FileLock(state / "token.lock", mode=0o600, timeout=10):
            token = read_text(path)
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
