"""Where in a text of JSON a refusal of the control API points to. Pure."""

import json
import re
from typing import Any

from addon.core.framing.documents import camel
from addon.core.json_lines import json_lines
from addon.core.located import KeyPath
from addon.web.problems import Problem

_LINE = re.compile(r" at line ([0-9]{1,9}) column [0-9]+$")

_LONGEST = 500_000
"""Characters. To find the line in more of them would stop everything else for too long."""


def line_of(text: str, problem: Problem) -> int | None:
    """The line, from 1; None: the refusal is of the whole."""
    if found := _LINE.search(problem.detail):
        return int(found[1])
    field, tool = str(problem.extra.get("field") or ""), problem.extra.get("tool")
    if len(text) > _LONGEST:
        return None
    try:
        document, lines = json.loads(text), json_lines(text)
    except (ValueError, RecursionError):
        return None
    if not field.startswith("tool") and isinstance(tool, str):  # the field is below the tool's declaration
        own = next((path[:-1] for path in lines if path[-1] == "name" and _at(document, path) == tool), None)
        field = "" if own is None else f"{_written(own)}.{field}"
    best, found_line = 0, None
    for path, line in lines.items():
        written = _written(path)
        if len(written) > best and (field == written or field.startswith((f"{written}.", f"{written}["))):
            best, found_line = len(written), line
    return found_line


def _written(path: KeyPath) -> str:
    """As refusals write it: `tools[0].functionDeclarations[0].name`."""
    words = ""
    for step in path:
        words += f"[{step}]" if isinstance(step, int) else f"{'.' if words else ''}{camel(step)}"
    return words


def _at(document: Any, path: KeyPath) -> Any:
    for step in path:
        document = document[step]
    return document
