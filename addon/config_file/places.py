"""Finds the toolgraft.toml to use."""

from pathlib import Path
from typing import NamedTuple

import platformdirs

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
    from addon.config_file.trust import untrusted

    if not local.is_file():  # a pipe would keep the start waiting
        return Choice(users, notice=f"{local} is not a file: it is not used")
    try:
        why = untrusted(local, read_file(local))
    except ConfigError as error:
        return Choice(users, notice=f"{error}: it is not used")
    if why is None:
        return Choice(local, trusted=True)
    return Choice(users, notice=f"{local} is not used: {why}. Read it, and then run `toolgraft trust`")
