"""The strict local Gemini shares no code with the proxy: neither would notice a mistake in shared code."""

from __future__ import annotations

import ast
from pathlib import Path

import addon.fake_gemini

FORBIDDEN = ("addon.core", "addon.graft", "addon.hooks", "addon.control", "addon.surfaces", "store", "mitmproxy")


def test_the_strict_server_imports_nothing_of_the_proxy() -> None:
    todo, visited = ["server"], set[str]()
    imported: set[str] = set()
    while todo:
        module = todo.pop()
        if module in visited:
            continue
        visited.add(module)
        for node in ast.walk(ast.parse((Path(addon.fake_gemini.__path__[0]) / f"{module}.py").read_text())):
            names = [f"{node.module}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            imported.update(names)
            for name in names:
                first = name.removeprefix("addon.fake_gemini.").partition(".")[0]
                path = Path(addon.fake_gemini.__path__[0]) / f"{first}.py"
                if name.startswith("addon.fake_gemini.") and path.exists():
                    todo.append(first)
    assert {"app", "rules", "history", "fields", "live"} <= visited
    assert not [name for name in imported if name.startswith(FORBIDDEN)]
