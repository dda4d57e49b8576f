"""Print the requirements of pyproject.toml, one a line: `runtime`, or the name of a dependency group.

Standard library only: it runs before anything is installed.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    found: dict[str, Any] = _document()["project"]
    return found


def requirements(layer: str) -> list[str]:
    """The requirements of one layer. Raises KeyError where there is no such group."""
    found: list[str] = project()["dependencies"] if layer == "runtime" else _document()["dependency-groups"][layer]
    return found


def _document() -> dict[str, Any]:
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    print("\n".join(line for layer in sys.argv[1:] for line in requirements(layer)))
