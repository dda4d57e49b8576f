"""The tool sources named in the settings, as one source. Each kind is imported only if it is used: without the MCP SDK
the proxy starts in two thirds of the time."""

from addon.settings import Settings
from addon.tools.base import ToolSource
from addon.tools.mcp_pins import Pins
from addon.tools.schema_checks import SchemaChecks


def sources_of(settings: Settings, checks: SchemaChecks | None = None, pins: Pins | None = None) -> ToolSource | None:
    """None if the settings name no source. Imports Python files; starts nothing. Raises SourceError."""
    sources: list[ToolSource] = []
    if settings.tools:
        from addon.tools.python import PythonSource

        sources += [PythonSource(path) for path in settings.tools]
    if settings.mcp:
        from addon.tools.mcp_bounds import McpBounds
        from addon.tools.mcp_servers import load

        bounds = McpBounds(settings.max_tools, settings.max_tool, settings.max_line)
        for path in settings.mcp:
            sources += load(path, checks, pins, bounds)
    if not sources:
        return None
    from addon.tools.combined import Combined

    return Combined(sources, name="graft_tools and graft_mcp")
