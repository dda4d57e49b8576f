"""The version of toolgraft."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def package_version() -> str:
    """The installed version; in a checkout, the one in pyproject.toml; "unknown" if there is neither."""
    try:
        return version("toolgraft")
    except PackageNotFoundError:
        pass
    try:
        found: str = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]
    except OSError:
        return "unknown"
    return found
