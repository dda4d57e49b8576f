"""MCP's tools and results in the proxy's words. No connections here."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import mcp_types
import msgspec

from addon.core.toolset import BadTool, normalise
from addon.tools.arguments import schema_problem
from addon.tools.base import Rules, SourceError, Tool
from addon.tools.mcp_config import Server


def declared(source: str, server: Server, found: Sequence[mcp_types.Tool]) -> dict[str, Tool]:
    """The tools of a server that its configuration selects, by name and with their rules.

    Raises SourceError for a tool that Gemini cannot take, and for names in the configuration that are no tools.
    """
    names = [tool.name for tool in found]
    _check_names(source, "tools.include", server.tools.include or (), names)
    _check_names(source, "tools.exclude", server.tools.exclude, names)
    _check_names(source, "rules", server.rules, names)
    return {tool.name: _tool(source, server, tool) for tool in found if _selected(server, tool.name)}


def result_of(result: mcp_types.CallToolResult) -> Any:
    """The structured content; else the text, parsed if it is a JSON object or list; else `{"content": […]}`."""
    if result.structured_content is not None:
        return result.structured_content
    texts = [block.text for block in result.content if isinstance(block, mcp_types.TextContent)]
    if len(texts) < len(result.content):
        return {
            "content": [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        }
    text = "\n".join(texts)
    if text.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return text


def _check_names(source: str, field: str, wanted: Iterable[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise SourceError(f"{source}: {field} names {name!r}, but its tools are {', '.join(names) or 'none'}")


def _selected(server: Server, name: str) -> bool:
    include = server.tools.include
    return (include is None or name in include) and name not in server.tools.exclude


def _tool(source: str, server: Server, tool: mcp_types.Tool) -> Tool:
    document: dict[str, Any] = {"name": tool.name, "inputSchema": tool.input_schema}
    if tool.description is not None:
        document["description"] = tool.description
    if tool.output_schema is not None:
        document["outputSchema"] = tool.output_schema
    hint = f'leave it out by "tools": {{"exclude": ["{tool.name}"]}}'
    if problem := schema_problem(tool.input_schema):
        raise SourceError(f"{source}: {tool.name}: inputSchema: {problem}; {hint}")
    try:
        declaration = normalise({"tools": [document]}).declarations[0]
    except BadTool as e:
        raise SourceError(f"{source}: {tool.name}: {e.field.removeprefix('tools[0].')} {e.message}; {hint}") from None
    rules = server.rules.get(tool.name, Rules())
    if rules.timeout is None:
        rules = replace(rules, timeout=server.timeout)
    return Tool(declaration, tool.input_schema, rules)
