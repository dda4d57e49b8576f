"""MCP's tools and results in the proxy's words. No connections here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mcp_types
from pydantic import ValidationError

from addon.core.documents import Malformed, decode
from addon.core.toolset import BadTool, normalise
from addon.tools.base import RunRules, Tool
from addon.tools.mcp_config import Server

_OUTPUT = "toolgraft/outputSchema"
_NONE: Mapping[str, str | None] = {}


def declared(
    server: Server,
    found: Sequence[mcp_types.Tool],
    left_out: Callable[[str, str], None],
    problems: Mapping[str, str | None] = _NONE,
) -> dict[str, Tool]:
    """The tools of a server that its configuration selects, by name and with their rules. `left_out` is told of each
    tool that cannot be used: its name, and why, beginning with the field. `problems`: why the inputSchema of a tool
    cannot be used."""
    tools: dict[str, Tool] = {}
    for one in found:
        if not selected(server, one.name):
            continue
        if one.name in tools:
            left_out(one.name, "name: another tool of the server has it too")
            continue
        try:
            if problem := problems.get(one.name):
                raise BadTool(one.name, "inputSchema:", problem)
            tools[one.name] = _tool(server, one)
        except BadTool as e:
            left_out(one.name, f"{e.field.removeprefix('tools[0].')} {e.message}")
    return tools


def unknown_names(server: Server, names: Sequence[str]) -> str | None:
    """What of the configuration names a tool that is not among these, in words."""
    fields: list[tuple[str, Iterable[str]]] = [
        ("tools.include", server.tools.include or ()),
        ("tools.exclude", server.tools.exclude),
        ("rules", server.rules),
    ]
    for field, wanted in fields:
        for name in wanted:
            if name not in names:
                return f"{field} names {name!r}, but its tools are {', '.join(names) or 'none'}"
    return None


def screened(result: Any, left_out: Callable[[str, str], None]) -> None:
    """Take out of a listing (the result of `tools/list`, which is changed) what is no MCP tool: the SDK would refuse
    the whole listing. An outputSchema is put aside: the SDK would check results in the event loop, for any time."""
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return
    kept = []
    for number, tool in enumerate(tools):
        try:
            mcp_types.Tool.model_validate(tool, by_name=False)
            if schema := tool.pop("outputSchema", None):
                tool["_meta"] = (tool.get("_meta") or {}) | {_OUTPUT: schema}
            kept.append(tool)
        except ValidationError as e:
            name = tool.get("name") if isinstance(tool, dict) else None
            first = e.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            left_out(name if isinstance(name, str) else f"number {number}", f"{place}: {first['msg']}".lstrip(": "))
    result["tools"] = kept


def output_schema(tool: mcp_types.Tool) -> Any:
    """What the tool's results have to fit; None where it does not say."""
    return (tool.meta or {}).get(_OUTPUT, tool.output_schema)


def described(tool: mcp_types.Tool) -> dict[str, Any]:
    """What a tool says of itself: what the model is told, and what its results and its approval go by."""
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    said = {
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": output_schema(tool),
        "annotations": annotations,
    }
    return {name: value for name, value in said.items() if value}


def is_destructive(tool: mcp_types.Tool) -> bool:
    """Whether the server says so. By the protocol a tool of which nothing is said may be, which is most tools."""
    return tool.annotations is not None and tool.annotations.destructive_hint is True


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
            return decode(text.encode("utf-8", "surrogatepass"))
        except Malformed:
            return text
    return text


def selected(server: Server, name: str) -> bool:
    """Whether the configuration wants a tool."""
    include = server.tools.include
    return (include is None or name in include) and name not in server.tools.exclude


def _tool(server: Server, tool: mcp_types.Tool) -> Tool:
    """Raises BadTool."""
    document: dict[str, Any] = {"name": tool.name, "inputSchema": tool.input_schema}
    if tool.description is not None:
        document["description"] = tool.description
    if (output := output_schema(tool)) is not None:
        document["outputSchema"] = output
    declaration = normalise({"tools": [document]}).declarations[0]
    rules = server.rules.get(tool.name, RunRules())
    if rules.timeout is None:
        rules = replace(rules, timeout=server.timeout)
    if is_destructive(tool) and not server.decides_approval(tool.name):
        rules = replace(rules, approval=True)
    return Tool(declaration, tool.input_schema, rules)
