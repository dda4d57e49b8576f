"""Where a toolgraft.toml is looked for."""

from pathlib import Path

import platformdirs

NAME = "toolgraft.toml"


def user_file() -> Path:
    """The file in the user's configuration folder, which need not exist."""
    return Path(platformdirs.user_config_dir("toolgraft")) / NAME


def chosen_file(given: str | None) -> Path | None:
    """The file to use: the one that `--config` gives, else the user's if it exists. Absolute."""
    if given is not None:
        return Path(given).absolute()
    found = user_file()
    return found if found.exists() else None
