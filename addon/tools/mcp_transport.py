"""The transport to an MCP server: a child process (stdio) or streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from addon.tools.mcp_bounds import BoundedTransport, longest_line
from addon.tools.mcp_config import Server
from addon.tools.mcp_stderr import stderr
from addon.tools.mcp_watch import ConnectionWatch

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # private: for the type checker only

_TIMEOUT = httpx2.Timeout(30, read=None)  # callers set their own timeouts


@asynccontextmanager
async def streams(
    server: Server,
    watch: ConnectionWatch,
    on_error_status: Callable[[int], None],
    on_stderr_line: Callable[[str], None],
    max_bytes: int,
) -> AsyncGenerator[TransportStreams]:
    """The two streams for the SDK's client. `watch` notices their end. `on_error_status` is called with each HTTP error
    status, `on_stderr_line` with each line of the process's stderr. A message of more than `max_bytes` ends the
    streams."""
    if server.command is not None:
        longest_line.set(max_bytes)
        parameters = StdioServerParameters(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
        async with stderr(on_stderr_line) as errlog, stdio_client(parameters, errlog=errlog) as (read, write):
            yield watch.wrap(read), write
        return
    assert server.url is not None

    async def answered(response: httpx2.Response) -> None:
        if response.is_error:
            on_error_status(response.status_code)

    hooks = {"response": [answered]}
    async with (
        httpx2.AsyncClient(
            headers=server.headers,
            timeout=_TIMEOUT,
            trust_env=False,
            event_hooks=hooks,
            transport=BoundedTransport(max_bytes),
        ) as http,
        streamable_http_client(server.url, http_client=http) as (read, write),
    ):
        yield watch.wrap(read), write
