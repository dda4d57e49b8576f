"""The tool sources that the settings name, as one."""

from addon.settings import Settings
from addon.tools.base import ToolSource
from addon.tools.combined import Combined
from addon.tools.mcp_servers import load
from addon.tools.python import PythonSource


def sources_of(settings: Settings) -> ToolSource | None:
    """None where the settings name none. Imports Python files; starts nothing. Raises SourceError."""
    sources: list[ToolSource] = [PythonSource(path) for path in settings.tools]
    for path in settings.mcp:
        sources += load(path)
    return Combined(sources, name="graft_tools and graft_mcp") if sources else None
