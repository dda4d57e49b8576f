"""Print the requirements of pyproject.toml, one a line: `runtime`, or the name of a dependency group.

Standard library only: it runs before anything is installed.
"""

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(layer: str) -> list[str]:
    """The requirements of one layer. Raises KeyError where there is no such group."""
    document = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    found: list[str] = (
        document["project"]["dependencies"] if layer == "runtime" else document["dependency-groups"][layer]
    )
    return found


if __name__ == "__main__":
    print("\n".join(line for layer in sys.argv[1:] for line in requirements(layer)))
