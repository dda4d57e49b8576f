"""Converts MCP's tools and results to the proxy's. No connections here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mcp_types

from addon.core.framing.documents import Malformed, decode
from addon.core.tools.tool_forms import BadTool, normalise
from addon.tools.base import RunRules, Tool
from addon.tools.mcp_config import Server
from addon.tools.mcp_transport import OUTPUT_SCHEMA
from addon.tools.outputs import Media, WithMedia, media_of

_NO_PROBLEMS: Mapping[str, str | None] = {}


def usable_tools(
    server: Server,
    listed: Sequence[mcp_types.Tool],
    left_out: Callable[[str, str], None],
    problems: Mapping[str, str | None] = _NO_PROBLEMS,
) -> dict[str, Tool]:
    """The selected tools of a server, by name and with their rules. `left_out` is called for each unusable tool, with
    its name and the reason, which begins with the field. `problems`: problems of inputSchemas, by tool name."""
    tools: dict[str, Tool] = {}
    for tool in listed:
        if not selected(server, tool.name):
            continue
        if tool.name in tools:
            left_out(tool.name, "name: another tool of the server has the same name")
            continue
        try:
            if tool.execution is not None and tool.execution.task_support == "required":
                raise BadTool(tool.name, "execution.taskSupport:", "is required, and the proxy cannot run tasks")
            if problem := problems.get(tool.name):
                raise BadTool(tool.name, "inputSchema:", problem)
            tools[tool.name] = _convert(server, tool)
        except BadTool as e:
            left_out(tool.name, f"{e.field.removeprefix('tools[0].')} {e.message}")
    return tools


def unknown_names(server: Server, names: Sequence[str]) -> str | None:
    """A message about a tool name in the configuration that is not among `names`; None if all are."""
    fields: list[tuple[str, Iterable[str]]] = [
        ("tools.include", server.tools.include or ()),
        ("tools.exclude", server.tools.exclude),
        ("rules", server.rules),
    ]
    for field, configured in fields:
        for name in configured:
            if name not in names:
                return f"{field} names {name!r}, but its tools are {', '.join(names) or 'none'}"
    return None


def output_schema(tool: mcp_types.Tool) -> Any:
    """The schema of the tool's results, if it has one."""
    return (tool.meta or {}).get(OUTPUT_SCHEMA, tool.output_schema)


def description_of(tool: mcp_types.Tool) -> dict[str, Any]:
    """The fields of a tool to pin: those that the model sees, and those that decide on results and approval."""
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    fields = {
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": output_schema(tool),
        "annotations": annotations,
    }
    return {name: value for name, value in fields.items() if value}


def is_destructive(tool: mcp_types.Tool) -> bool:
    """Whether the server marks the tool as destructive. By the protocol, tools without the mark may be destructive too,
    but most tools have none."""
    return tool.annotations is not None and tool.annotations.destructive_hint is True


def result_of(result: mcp_types.CallToolResult) -> Any:
    """The structured content; else the text, parsed if it is a JSON object or list; else images, sounds and files, with
    the text before and after them; else `{"content": […]}`. Images beside the structured content belong to it."""
    media = [_media_of(block) for block in result.content]
    known = [one for one in media if one is not None]
    if result.structured_content is not None:
        return _structured(result, media) if known else result.structured_content
    texts = [block.text for block in result.content if isinstance(block, mcp_types.TextContent)]
    if len(texts) < len(result.content):
        items = [_item(block, one) for block, one in zip(result.content, media, strict=True)]
        if len(texts) + len(known) < len(items):
            return {"content": items}
        return items if len(items) > 1 else items[0]
    text = "\n".join(texts)
    if text.lstrip()[:1] in ("{", "["):
        try:
            return decode(text.encode("utf-8", "surrogatepass"))
        except Malformed:
            return text
    return text


def _structured(result: mcp_types.CallToolResult, media: Sequence[Media | None]) -> WithMedia:
    """The structured content and its media. If it repeats the base64 of a block, the media take that place."""
    copies = {_data(block): one for block, one in zip(result.content, media, strict=True) if one is not None}
    placed: list[Media] = []

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replaced(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [replaced(inner) for inner in value]
        if isinstance(value, str) and (one := copies.get(value)) is not None:
            placed.append(one)
            return one
        return value

    value = replaced(result.structured_content)
    return WithMedia(value, [one for one in media if one is not None and one not in placed])


def _data(block: mcp_types.ContentBlock) -> str:
    """The base64 of a media block."""
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        return block.data
    assert isinstance(block, mcp_types.EmbeddedResource)
    assert isinstance(block.resource, mcp_types.BlobResourceContents)
    return block.resource.blob


def _media_of(block: mcp_types.ContentBlock) -> Media | None:
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        return media_of(block.data, block.mime_type)
    if isinstance(block, mcp_types.EmbeddedResource) and isinstance(block.resource, mcp_types.BlobResourceContents):
        return media_of(block.resource.blob, block.resource.mime_type)
    return None


def _item(block: mcp_types.ContentBlock, media: Media | None) -> Any:
    if isinstance(block, mcp_types.EmbeddedResource) and media is not None:
        return {"uri": str(block.resource.uri), "file": media}
    if media is not None:
        return media
    if isinstance(block, mcp_types.TextContent):
        return block.text
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)


def selected(server: Server, name: str) -> bool:
    """Whether the configuration selects a tool."""
    include = server.tools.include
    return (include is None or name in include) and name not in server.tools.exclude


def _convert(server: Server, tool: mcp_types.Tool) -> Tool:
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
