"""Tools of MCP servers, over stdio or streamable HTTP, with the official SDK.

A server that is down, hangs, or lists unusable tools never stops the proxy. A server's environment has only its
configured variables and the few that any program needs to start.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult

from addon.core.framing.documents import Malformed, decode
from addon.core.security.secrets import secrets_of_environment, secrets_of_executor
from addon.core.summaries import problem
from addon.core.tools.tool_forms import BadTool, normalise
from addon.monitoring.own_secrets import own_secrets
from addon.tools.base import RunRules, ServerState, SourceError, Tool, ToolError, ToolSource
from addon.tools.combined import outcomes_of
from addon.tools.http_endpoint import encoded
from addon.tools.mcp_config import Server
from addon.tools.mcp_connection import Connection
from addon.tools.mcp_pins import HeldBackTool, Pins
from addon.tools.mcp_transport import OUTPUT_SCHEMA, McpBounds, quiet_sdk
from addon.tools.outputs import Media, WithMedia, media_of
from addon.tools.schema_checks import problems, schema_problem

START_TIMEOUT = 10.0  # seconds that opening waits for a server's tools
RESTART_TIMEOUT = 15.0  # seconds to wait for a restart
_MAX_PAGES = 100
_MAX_WARNINGS = 1000  # about one server
_BOUNDS = McpBounds()

_log = logging.getLogger(__name__)


class McpSource(ToolSource):
    """One MCP server.

    Opening waits up to `start_timeout` seconds for the tools. If the server is not up by then, a warning is logged, and
    it has no tools until a later attempt succeeds, which calls `changed`. An unusable tool is left out, with a warning
    that names the tool and the field. If the configuration names a tool that the server does not have, opening raises
    SourceError; after opening, this is only a warning. A tool that differs from its pin is neither listed nor called.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        start_timeout: float = START_TIMEOUT,
        pins: Pins | None = None,
        bounds: McpBounds = _BOUNDS,
        pin_name: str | None = None,
    ) -> None:
        quiet_sdk()
        own_secrets.learn(secrets_of_executor(server.url or "", (server.headers or {}).items()))
        own_secrets.learn(secrets_of_environment((server.env or {}).items()))
        self.name = f"MCP server {name!r}"
        self._server = server
        self._start_timeout = start_timeout
        self._tools: dict[str, Tool] = {}
        self._output_schemas: dict[str, Any] = {}  # schemas of results, by tool name
        self._pins = pins
        self._pin_name = pin_name or name
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._usable: dict[str, Tool] = {}  # the usable tools, including those held back
        self._opened = False
        self._is_late = False
        self._invalid_names: set[str] = set()
        self._warned: set[str] = set()
        self._bounds = bounds
        self._connection = Connection(name, self.name, server, self._list, self._skip_invalid, bounds.line)

    async def __aenter__(self) -> Self:
        try:
            await self._connection.start(self._start_timeout)
            if self._connection.fatal_error is not None:
                raise self._connection.fatal_error
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        if not self._connection.is_known:
            self._is_late = True
            _log.warning(
                "%s is not up: %s. Its tools are available as soon as it is",
                self.name,
                self._connection.error,
                extra=problem("server_down", server=self._connection.server_name, error=self._connection.error),
            )
        self._opened = True
        return self

    async def __aexit__(self, *error: object) -> None:
        # not cancelled, so that no process is left behind
        (failure,) = await outcomes_of([self._connection.close()], uncancelled=True)
        if failure is not None:
            raise failure

    def server_states(self) -> Sequence[ServerState]:
        one = self._connection
        error = None if one.is_up else one.error
        return [ServerState(self._pin_name, one.is_up, len(self._tools), error, one.last_error, one.last_error_at)]

    async def restart(self, server: str) -> bool:
        if server != self._pin_name:
            return False
        _log.info("%s is restarted", self.name)
        await self._connection.restart(RESTART_TIMEOUT)
        return True

    async def list_tools(self) -> Sequence[Tool]:
        return list(self._tools.values())

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """Run one call. Returns the result in the form of `result_of`."""
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r}")
        encoded(args)  # otherwise the SDK could fail while writing them, and would end the connection
        connection = self._connection
        client = await connection.client()
        try:
            result = await client.call_tool(name, dict(args))
        except MCPError as e:
            unknown = e.message == "Session terminated"  # the SDK's message if the server no longer knows the session
            if unknown:
                connection.end()
            lost = unknown or e.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
            retryable = lost or self._is_retried(name)
            raise ToolError(
                f"{self.name}: {connection.describe_failure(e)}", retryable=retryable, sent=not unknown
            ) from e
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as e:
            raise ToolError(f"{self.name}: the connection has ended", retryable=True) from e
        except (RuntimeError, ValueError) as e:  # the answer violates the protocol or the tool's schema
            raise ToolError(f"{self.name}: {connection.describe_failure(e)}", retryable=self._is_retried(name)) from e
        except asyncio.CancelledError:
            connection.probe(client)
            raise
        return self._result(name, result)

    def _result(self, name: str, result: CallToolResult) -> Any:
        value = result_of(result)
        if result.is_error:
            raise ToolError(value if isinstance(value, str) else str(value), retryable=self._is_retried(name))
        schema = self._output_schemas.get(name)
        if schema is not None and problems(schema, result.structured_content, name):
            why = "its result does not fit the tool's outputSchema"
            raise ToolError(f"{self.name}: {why}", retryable=self._is_retried(name))
        return value

    def _is_retried(self, name: str) -> bool:
        """Whether the configuration sets `retries` for the tool, so that any failure is retryable."""
        return name in self._tools and self._tools[name].rules.retries is not None

    # --- listing --------------------------------------------------------------------------------------------------

    async def _list(self, client: Client) -> None:
        found, cursor = [], None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > self._bounds.tools:
                break
        found = self._within_bounds(found)
        if unknown := unknown_names(self._server, [*(tool.name for tool in found), *self._invalid_names]):
            if not self._opened:
                raise SourceError(f"{self.name}: {unknown}")
            self._warn_once(unknown)
        self._usable = usable_tools(self._server, found, self._warn_left_out)
        self._descriptions = {tool.name: description_of(tool) for tool in found if tool.name in self._usable}
        self._output_schemas = {tool.name: schema for tool in found if (schema := output_schema(tool)) is not None}
        self._apply_pins()
        if self._is_late:
            self._is_late = False
            _log.info(
                "%s is up, %d tools",
                self.name,
                len(self._tools),
                extra=problem("server_up", server=self._connection.server_name, tools=len(self._tools)),
            )

    def _apply_pins(self) -> None:
        """Offer the usable tools, except those that differ from their pins."""
        held_back: list[HeldBackTool] = []
        if self._pins is not None:
            held_back = self._pins.update(self._pin_name, self._descriptions, self._apply_pins)
        for tool in held_back:
            self._warn_once(
                f"the tool {tool.tool!r} is held back: its {', '.join(tool.fields)} changed (now {tool.digest[:12]}); "
                "`toolgraft tools held` shows how, and `toolgraft tools accept` accepts it as it is now"
            )
        held_names = {tool.tool for tool in held_back}
        tools = {name: tool for name, tool in self._usable.items() if name not in held_names}
        differ, self._tools = tools != self._tools, tools
        if differ and self._opened and self.changed:
            self.changed()

    def _within_bounds(self, found: list[mcp_types.Tool]) -> list[mcp_types.Tool]:
        if len(found) > (most := self._bounds.tools):
            self._warn_once(f"it has more than {most} tools (graft_max_tools): the rest is left out")
        small = []
        for tool in found[:most]:
            if len(tool.model_dump_json()) <= self._bounds.tool:
                small.append(tool)
            else:
                self._skip_invalid(tool.name, f"it has more than {self._bounds.tool} bytes (graft_max_tool)")
        return small

    def _skip_invalid(self, tool: str, why: str) -> None:
        """Warn about an invalid tool in a listing, if the configuration selects it."""
        if len(self._invalid_names) < _MAX_WARNINGS:
            self._invalid_names.add(tool)
        if selected(self._server, tool):
            self._warn_left_out(tool, why)

    def _warn_left_out(self, tool: str, why: str) -> None:
        self._warn_once(f"the tool {tool!r} is left out: {why}")

    def _warn_once(self, message: str) -> None:
        """Once, because a server may list its tools repeatedly."""
        if message not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(message)
            _log.warning("%s: %s", self.name, message)


def usable_tools(
    server: Server,
    listed: Sequence[mcp_types.Tool],
    left_out: Callable[[str, str], None],
) -> dict[str, Tool]:
    """The selected tools of a server, by name and with their rules. `left_out` is called for each unusable tool, with
    its name and the reason, which begins with the field."""
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
            if (why := schema_problem(tool.input_schema, tool.name)) is not None:
                raise BadTool(tool.name, "inputSchema:", why)
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


def _is_destructive(tool: mcp_types.Tool) -> bool:
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
    if _is_destructive(tool) and tool.name not in server.approvals:
        rules = replace(rules, approval=True)
    return Tool(declaration, tool.input_schema, rules)
