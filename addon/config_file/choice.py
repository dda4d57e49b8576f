"""Chooses the toolgraft.toml to use, and keeps which contents of a file in a working folder the user trusts.

The file names programs that the proxy starts, so working in another person's folder must not be enough to run them.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import platformdirs

from addon.state_folder import check_folder, make_folder, state_folder, write_file

NAME = "toolgraft.toml"


class Choice(NamedTuple):
    """The file to use, if any. `trusted`: it is in the working folder, and used only with the contents that the user
    trusts. `notice`: why the file of the working folder is not used."""

    path: Path | None
    trusted: bool = False
    notice: str | None = None


def user_file() -> Path:
    """The file in the user's configuration folder, which need not exist."""
    return Path(platformdirs.user_config_dir("toolgraft")) / NAME


def local_file() -> Path:
    """The file in the working folder, which need not exist."""
    return Path.cwd() / NAME


def chosen_file(given: str | None) -> Choice:
    """The file that `--config` gives, else that of the working folder if it is trusted, else the user's. Paths are
    absolute. Raises OSError, ValueError if the list of trusted files is unreadable."""
    if given is not None:
        return Choice(Path(given).absolute())
    local, own = local_file(), user_file()
    users = own if own.exists() else None
    if not local.exists() or (users is not None and local.samefile(users)):
        return Choice(users)
    from addon.config_file.reading import ConfigError, read_file  # slow

    if not local.is_file():  # a pipe would keep the start waiting
        return Choice(users, notice=f"{local} is not a file: it is not used")
    try:
        why = untrusted(local, read_file(local))
    except ConfigError as error:
        return Choice(users, notice=f"{error}: it is not used")
    if why is None:
        return Choice(local, trusted=True)
    return Choice(users, notice=f"{local} is not used: {why}. Read it, and then run `toolgraft trust`")


def trust(path: Path, content: bytes) -> None:
    """Trust only these contents of the file. Raises OSError, ValueError."""
    _write(_read() | {_name(path): _hash(content)})


def distrust(path: Path) -> bool:
    """Returns whether the file was trusted. Raises OSError, ValueError."""
    hashes = _read()
    found = hashes.pop(_name(path), None) is not None
    if found:
        _write(hashes)
    return found


def untrusted(path: Path, content: bytes) -> str | None:
    """Why these contents must not be used, or None if they are trusted. Raises OSError, ValueError."""
    known = _read().get(_name(path))
    if known == _hash(content):
        return None
    return "nobody has trusted it" if known is None else "it has changed since it was trusted"


def _name(path: Path) -> str:
    return str(path.resolve())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def trust_file() -> Path:
    return state_folder() / "trusted_configs.json"


def _read() -> dict[str, str]:
    file = trust_file()
    check_folder(file.parent)
    try:
        found: dict[str, str] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise ValueError(f"{file}: cannot be read; delete it, and trust your files again") from None
    return found


def _write(hashes: dict[str, str]) -> None:
    file = trust_file()
    make_folder(file.parent)
    write_file(file, json.dumps(hashes, indent=2))
