"""Tools of MCP servers, over stdio or streamable HTTP, by the official SDK.

Each server has one task that connects, lists its tools, and waits for the end of the connection: the SDK's scopes must
be left by the task that entered them. Calls run in their callers' tasks. A server that has ended is started again by
the next call. What a server does never stops the proxy, and a server sees no environment but what it is configured
with and the few variables that any program needs to start.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client import IncomingMessage, Transport
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from addon.tools.base import SourceError, Tool, ToolError, ToolSource
from addon.tools.combined import prefixed
from addon.tools.mcp_config import Server, read_servers
from addon.tools.mcp_tools import declared, result_of
from addon.tools.mcp_watch import Watch, quiet_sdk

START_TIMEOUT = 10.0  # seconds that opening waits for a server's tools
_CONNECT_TIMEOUT = 60.0  # seconds for one attempt: a first start may have to download the server
_CLOSE_TIMEOUT = 5.0
_STEADY = 10.0  # seconds after which a connection that ends has not failed at once
_MAX_DELAY = 30.0  # seconds between attempts
_PATIENCE = 1.0  # seconds until the next attempt that a call waits for
_MAX_PAGES = 100

_log = logging.getLogger(__name__)


def load(path: str | Path) -> list[ToolSource]:
    """The servers of an `mcpServers` file, each one a source, with its prefix if it has one. Starts none.

    Raises SourceError naming the file and the field.
    """
    return [prefixed(McpSource(name, server), server.prefix) for name, server in read_servers(path).items()]


class McpSource(ToolSource):
    """One MCP server.

    Opening waits for its tools for `start_timeout` seconds; a server that is not up by then has none, with a warning,
    until it is up: that is tried again and again, and told by `changed`. Raises SourceError if it lists a tool that
    Gemini cannot take, or has no tool that the configuration names.
    """

    def __init__(self, name: str, server: Server, *, start_timeout: float = START_TIMEOUT) -> None:
        quiet_sdk()
        self.name = f"MCP server {name!r}"
        self._server = server
        self._start_timeout = start_timeout
        self._tools: dict[str, Tool] = {}
        self._listed = False
        self._opened = False
        self._refused: SourceError | None = None
        self._error = "it is starting"
        self._client: Client | None = None
        self._watch = Watch(self._lost)
        self._turn = asyncio.Event()  # set once the attempt under way, or the next one, has come up or failed
        self._wanted = asyncio.Event()
        self._retry_at = 0.0
        self._life = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        turn = self._turn
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=self.name)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._start_timeout):
                    await turn.wait()
            if self._refused is not None:
                raise self._refused
        except BaseException:
            await self._close()
            raise
        if not self._listed:
            _log.warning("%s is not up: %s. Its tools are there as soon as it is", self.name, self._error)
        self._opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def list_tools(self) -> Sequence[Tool]:
        return list(self._tools.values())

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """One call; the result is the structured content, or else the text (parsed if it is a JSON object or list)."""
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r}")
        client = await self._connected()
        try:
            result = await client.call_tool(name, dict(args))
        except MCPError as e:
            if e.message == "Session terminated":  # the SDK's words for a session that the server no longer knows
                self._watch.end()
            lost = e.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT) or e.message == "Session terminated"
            raise ToolError(f"{self.name}: {e.message}", retryable=lost or self._retried(name)) from e
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as e:
            raise ToolError(f"{self.name}: the connection has ended", retryable=True) from e
        except (RuntimeError, ValueError) as e:  # an answer that is not as the protocol or the tool's schema says
            raise ToolError(f"{self.name}: {e}", retryable=self._retried(name)) from e
        return self._result(name, result)

    def _result(self, name: str, result: CallToolResult) -> Any:
        value = result_of(result)
        if result.is_error:
            raise ToolError(value if isinstance(value, str) else str(value), retryable=self._retried(name))
        return value

    def _retried(self, name: str) -> bool:
        """Whether the configuration asks for retries of the tool, and so of any failure."""
        return name in self._tools and self._tools[name].rules.retries is not None

    async def _connected(self) -> Client:
        if self._client is None:
            if self._retry_at - time.monotonic() > _PATIENCE:
                raise self._down()
            turn = self._turn
            self._wanted.set()
            await turn.wait()
        if self._client is None:
            raise self._down()
        return self._client

    def _down(self) -> ToolError:
        return ToolError(f"{self.name} is down: {self._error}", retryable=True)

    async def _supervise(self) -> None:
        with self._life:
            await self._connect_again()
        self._ended("it is closed")

    async def _connect_again(self) -> None:
        """Connect, and connect again: at once for the first time, then with growing delays, and only if wanted."""
        failures = 0
        while not self._watch.stopped:
            began = time.monotonic()
            await self._attempt()
            failures = 1 if time.monotonic() - began > _STEADY else failures + 1
            delay = 0.0 if failures == 1 and self._listed else min(0.25 * 2**failures, _MAX_DELAY)
            self._retry_at = time.monotonic() + delay
            if self._watch.stopped or (self._refused is not None and not self._listed):
                return
            await asyncio.sleep(delay)
            if self._listed:
                await self._wanted.wait()

    async def _attempt(self) -> None:
        """One connection, from its start to its end. Never raises but when cancelled."""
        self._wanted.clear()
        self._watch.begin()
        up = False
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + _CONNECT_TIMEOUT) as scope:
                async with Client(self._transport(), message_handler=self._told, cache=None) as client:
                    await self._list(client)
                    scope.deadline = math.inf
                    up, self._client = True, client
                    self._turn.set()
                    try:
                        await self._follow(client)
                    finally:
                        self._lost()
            if scope.cancelled_caught:
                self._error = f"it has not answered within {_CONNECT_TIMEOUT:g} s"
        except Exception as e:  # whatever a server or its transport may do
            cause = _cause(e)
            self._error = str(cause) or type(cause).__name__
            if isinstance(cause, SourceError):
                self._refused = cause
                if self._opened:
                    _log.warning("%s", cause)
        if not up:
            self._ended(self._error)

    def _lost(self) -> None:
        if self._client is not None:
            self._ended("it has ended")

    def _ended(self, error: str) -> None:
        """Let those who wait for this attempt go, and the next ones wait for the next."""
        self._client, self._error = None, error
        self._turn.set()
        self._turn = asyncio.Event()

    async def _follow(self, client: Client) -> None:
        """Keep the list of tools as the server has it, until the connection ends."""
        async with AsyncExitStack() as stack:
            capability = client.server_capabilities.tools
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS and capability and capability.list_changed:
                with suppress(MCPError, RuntimeError, TimeoutError), anyio.fail_after(_CLOSE_TIMEOUT):
                    await stack.enter_async_context(client.listen(tools_list_changed=True))
                    self._watch.changed()
            while await self._watch.wait():
                try:
                    await self._list(client)
                except (SourceError, MCPError) as e:
                    if not self._watch.ended:
                        _log.warning("%s: its tools stay as they were: %s", self.name, e)

    async def _told(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._watch.changed()

    async def _list(self, client: Client) -> None:
        found, cursor = [], None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        tools = declared(self.name, self._server, found)
        differ = tools != self._tools
        self._tools, self._listed = tools, True
        if differ and self._opened and self.changed:
            self.changed()

    @asynccontextmanager
    async def _transport_streams(self) -> AsyncGenerator[TransportStreams]:
        server = self._server
        if server.command is not None:
            parameters = StdioServerParameters(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
            async with stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr) as (read, write):
                yield self._watch.over(read), write
            return
        assert server.url is not None
        timeout = httpx2.Timeout(30, read=None)  # callers bound their calls
        async with (
            httpx2.AsyncClient(headers=server.headers, timeout=timeout, trust_env=False) as http,
            streamable_http_client(server.url, http_client=http) as (read, write),
        ):
            yield self._watch.over(read), write

    def _transport(self) -> Transport:
        return self._transport_streams()

    async def _close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._watch.stop()
        if self._client is not None:  # it leaves by itself, politely
            self._life.deadline = anyio.current_time() + _CLOSE_TIMEOUT
        else:
            self._life.cancel()
        await asyncio.wait([task])


def _cause(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
