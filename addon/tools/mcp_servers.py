"""Tools of MCP servers, over stdio or streamable HTTP, by the official SDK.

What a server does never stops the proxy: it may be down, hang, or list tools that cannot be used. A server sees no
environment but what it is configured with and the few variables that any program needs to start.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types
import msgspec
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult

from addon.core.credentials import secrets_of_environment, secrets_of_executor
from addon.own_secrets import own_secrets
from addon.tools.base import SourceError, Tool, ToolError, ToolSource
from addon.tools.combined import prefixed
from addon.tools.mcp_bounds import McpBounds
from addon.tools.mcp_config import Server, read_servers
from addon.tools.mcp_connection import Connection
from addon.tools.mcp_pins import Pins
from addon.tools.mcp_tools import declared, described, output_schema, result_of, selected, unknown_names
from addon.tools.mcp_watch import quiet_sdk
from addon.tools.schema_checks import SchemaChecks

START_TIMEOUT = 10.0  # seconds that opening waits for a server's tools
_MAX_PAGES = 100
_MOST_SAID = 1000  # warnings about one server: it could have more to complain of
_BOUNDS = McpBounds()

_log = logging.getLogger(__name__)


def load(
    path: str | Path,
    checks: SchemaChecks | None = None,
    pins: Pins | None = None,
    bounds: McpBounds = _BOUNDS,
) -> list[ToolSource]:
    """The servers of an `mcpServers` file, each one a source, with its prefix if it has one. Starts none.

    Raises SourceError naming the file and the field.
    """
    servers = read_servers(path)
    sources = {
        name: McpSource(name, server, checks=checks, pins=pins, bounds=bounds) for name, server in servers.items()
    }
    return [prefixed(source, servers[name].prefix) for name, source in sources.items()]


class McpSource(ToolSource):
    """One MCP server.

    Opening waits for its tools for `start_timeout` seconds; a server that is not up by then has none, with a warning,
    until it is up: that is tried again and again, and told by `changed`. A tool that cannot be used is left out, with a
    warning that names the tool and the field. Opening raises SourceError for a name in the configuration that is none
    of the server's tools; a server that comes up later, or lists others then, is taken without it. A tool that is no
    longer what `pins` says is neither listed nor called.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        start_timeout: float = START_TIMEOUT,
        checks: SchemaChecks | None = None,
        pins: Pins | None = None,
        bounds: McpBounds = _BOUNDS,
    ) -> None:
        quiet_sdk()
        own_secrets.learn(secrets_of_executor(server.url or "", (server.headers or {}).items()))
        own_secrets.learn(secrets_of_environment((server.env or {}).items()))
        self.name = f"MCP server {name!r}"
        self._server = server
        self._start_timeout = start_timeout
        self._tools: dict[str, Tool] = {}
        self._outputs: dict[str, Any] = {}  # the schemas that results have to fit
        self._checks = checks or SchemaChecks()
        self._pins = pins
        self._pinned_as = pins.add(name) if pins is not None else name
        self._described: dict[str, dict[str, Any]] = {}
        self._listed: dict[str, Tool] = {}  # those that can be used, if they are not held back
        self._opened = False
        self._screened: set[str] = set()
        self._said: set[str] = set()
        self._bounds = bounds
        self._connection = Connection(self.name, server, self._list, self._screen, bounds.line)

    async def __aenter__(self) -> Self:
        try:
            await self._connection.start(self._start_timeout)
            if self._connection.refused is not None:
                raise self._connection.refused
        except BaseException:
            await self._connection.close()
            raise
        if not self._connection.is_known:
            _log.warning("%s is not up: %s. Its tools are there as soon as it is", self.name, self._connection.error)
        self._opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()
        await self._checks.close()

    async def list_tools(self) -> Sequence[Tool]:
        return list(self._tools.values())

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """One call; the result is the structured content, or else the text (parsed if it is a JSON object or list)."""
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r}")
        _check_sendable(args)
        connection = self._connection
        client = await connection.client()
        try:
            result = await client.call_tool(name, dict(args))
        except MCPError as e:
            unknown = e.message == "Session terminated"  # the SDK's words for a session that the server no longer knows
            if unknown:
                connection.end()
            lost = unknown or e.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
            retryable = lost or self._retried(name)
            raise ToolError(
                f"{self.name}: {connection.describe_failure(e)}", retryable=retryable, sent=not unknown
            ) from e
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as e:
            raise ToolError(f"{self.name}: the connection has ended", retryable=True) from e
        except (RuntimeError, ValueError) as e:  # an answer that is not as the protocol or the tool's schema says
            raise ToolError(f"{self.name}: {connection.describe_failure(e)}", retryable=self._retried(name)) from e
        except asyncio.CancelledError:
            connection.doubt(client)
            raise
        return await self._result(name, result)

    async def _result(self, name: str, result: CallToolResult) -> Any:
        value = result_of(result)
        if result.is_error:
            raise ToolError(value if isinstance(value, str) else str(value), retryable=self._retried(name))
        schema = self._outputs.get(name)
        if schema is not None and await self._checks.problems(schema, result.structured_content):
            words = "its result does not fit the tool's outputSchema"
            raise ToolError(f"{self.name}: {words}", retryable=self._retried(name))
        return value

    def _retried(self, name: str) -> bool:
        """Whether the configuration asks for retries of the tool, and so of any failure."""
        return name in self._tools and self._tools[name].rules.retries is not None

    # --- its tools ------------------------------------------------------------------------------------------------

    async def _list(self, client: Client) -> None:
        found, cursor = [], None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > self._bounds.tools:
                break
        found = self._within_bounds(found)
        if problem := unknown_names(self._server, [*(tool.name for tool in found), *self._screened]):
            if not self._opened:
                raise SourceError(f"{self.name}: {problem}")
            self._say(problem)
        problems = {tool.name: await self._checks.schema_problem(tool.input_schema) for tool in found}
        self._listed = declared(self._server, found, self._left_out, problems)
        self._described = {tool.name: described(tool) for tool in found if tool.name in self._listed}
        self._outputs = {tool.name: schema for tool in found if (schema := output_schema(tool)) is not None}
        self._take()

    def _take(self) -> None:
        """Use the tools that are listed, but for those that are no longer what they were."""
        held = self._pins.update(self._pinned_as, self._described, self._take) if self._pins is not None else []
        for one in held:
            self._say(
                f"the tool {one.tool!r} is held back: its {', '.join(one.fields)} changed (now {one.digest[:12]}); "
                "`toolgraft tools held` shows how, and `toolgraft tools accept` takes it as it is now"
            )
        names = {one.tool for one in held}
        tools = {name: tool for name, tool in self._listed.items() if name not in names}
        differ, self._tools = tools != self._tools, tools
        if differ and self._opened and self.changed:
            self.changed()

    def _within_bounds(self, found: list[mcp_types.Tool]) -> list[mcp_types.Tool]:
        if len(found) > (most := self._bounds.tools):
            self._say(f"it has more than {most} tools (graft_max_tools): those behind them are left out")
        kept = []
        for tool in found[:most]:
            if len(tool.model_dump_json()) <= self._bounds.tool:
                kept.append(tool)
            else:
                self._screen(tool.name, f"it has more than {self._bounds.tool} bytes (graft_max_tool)")
        return kept

    def _screen(self, tool: str, why: str) -> None:
        """Something in a listing is no tool."""
        if len(self._screened) < _MOST_SAID:
            self._screened.add(tool)
        if selected(self._server, tool):
            self._left_out(tool, why)

    def _left_out(self, tool: str, why: str) -> None:
        self._say(f"the tool {tool!r} is left out: {why}")

    def _say(self, words: str) -> None:
        """Once: a server lists its tools again and again."""
        if words not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(words)
            _log.warning("%s: %s", self.name, words)


def _check_sendable(args: Mapping[str, Any]) -> None:
    """The SDK would notice when it writes them, and end the connection. Raises ToolError."""
    try:
        msgspec.json.encode(args)
    except (ValueError, TypeError, RecursionError):
        raise ToolError("the arguments cannot be sent as JSON", sent=False) from None
