"""The packages that the sources import are those that pyproject.toml declares."""

import ast
import functools
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
OWN = ("addon", "store", "toolgraft")
LOADED = {"wsproto"}  # by uvicorn for the strict local Gemini


@functools.cache
def imported() -> set[str]:
    """The distributions of all modules that the product imports, also within functions and for the type checker."""
    modules: set[str] = set()
    for folder in OWN:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
                    names = [node.module]
                modules |= {name.partition(".")[0] for name in names}
    distributions = metadata.packages_distributions()
    foreign = modules - set(sys.stdlib_module_names) - set(OWN)
    return {canonicalize_name(name) for module in foreign for name in distributions.get(module, [module])}


def declared() -> set[str]:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {canonicalize_name(Requirement(line).name) for line in dependencies}


def test_every_package_that_is_imported_is_declared() -> None:
    assert imported() - declared() == set()


def test_every_package_that_is_declared_is_imported() -> None:
    assert declared() - imported() - LOADED == set()
