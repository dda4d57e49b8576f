"""The tools of a session, each with its source and who runs its calls, for the start message and for commands."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from addon.core.framing.documents import Document
from addon.core.summaries import shortened
from addon.graft.session_config import shared_with
from addon.loop.executors import Executors
from store.models import ToolRules, Toolset

_LONGEST_TOOL_NAME = 128
_LONGEST_SOURCE = 120
_OWN = "the session"
_MOST_NAMES = 20
"""The most tools that are named."""


class ToolRow(NamedTuple):
    name: str
    source: str
    run_by: str
    description: str


def tool_rows(toolset: Toolset | None, shared: Sequence[Document], executors: Executors) -> list[ToolRow]:
    """The session's own tools, then the proxy's tools that it has too (`shared`)."""
    rows: list[ToolRow] = []
    for declaration in toolset.declarations if toolset is not None else ():
        rules = toolset.rules.get(str(declaration["name"]), ToolRules()) if toolset is not None else ToolRules()
        rows.append(_tool_row(declaration, _OWN, _handler(rules) + (", after an approval" if rules.approval else "")))
    for declaration in shared_with(toolset, shared):
        name, source = str(declaration["name"]), executors.source
        tool = executors.tools.get(name)
        approval = ", after an approval" if tool is not None and tool.rules.approval else ""
        rows.append(
            _tool_row(declaration, "" if source is None else source.name_of(name), f"run by the proxy{approval}")
        )
    return rows


def tool_groups(rows: Sequence[ToolRow]) -> Iterator[str]:
    """One line for the tools of each source that are run in the same way."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((row.source, row.run_by), []).append(row.name)
    for (source, run_by), names in groups.items():
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        where = run_by if source == _OWN else f"{source}, {run_by}"
        yield f"{where}: {', '.join(names[:_MOST_NAMES])}{more}"


def _tool_row(declaration: Document, source: str, run_by: str) -> ToolRow:
    name, description = str(declaration["name"]), str(declaration.get("description", ""))
    return ToolRow(
        shortened(name, _LONGEST_TOOL_NAME), shortened(source, _LONGEST_SOURCE), run_by, shortened(description, 100)
    )


def _handler(rules: ToolRules) -> str:
    executor = rules.executor
    if executor is None:
        return "answered by hand"
    if executor.type == "worker":
        return "run by workers"
    return f"run by {shortened(urlsplit(executor.url or '').hostname or 'HTTP', _LONGEST_SOURCE)}"
