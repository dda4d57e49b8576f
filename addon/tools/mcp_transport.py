"""The way to an MCP server: a process of the proxy's own, or streamable HTTP. Nothing is asked of it here."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from addon.tools.mcp_bounds import BoundedTransport, longest_line
from addon.tools.mcp_config import Server
from addon.tools.mcp_stderr import stderr
from addon.tools.mcp_watch import Watch

_TIMEOUT = httpx2.Timeout(30, read=None)  # callers bound their calls


@asynccontextmanager
async def streams(
    server: Server, watch: Watch, refused: Callable[[int], None], say: Callable[[str], None], most: int
) -> AsyncGenerator[TransportStreams]:
    """The two streams that the SDK's client talks over. `watch` is told of their end, `refused` of HTTP statuses that
    are errors, `say` of each line that a process writes to stderr. A message has `most` bytes at most: they end with a
    longer one."""
    if server.command is not None:
        longest_line.set(most)
        parameters = StdioServerParameters(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
        async with stderr(say) as errlog, stdio_client(parameters, errlog=errlog) as (read, write):
            yield watch.over(read), write
        return
    assert server.url is not None

    async def answered(response: httpx2.Response) -> None:
        if response.is_error:
            refused(response.status_code)

    hooks = {"response": [answered]}
    async with (
        httpx2.AsyncClient(
            headers=server.headers,
            timeout=_TIMEOUT,
            trust_env=False,
            event_hooks=hooks,
            transport=BoundedTransport(most),
        ) as http,
        streamable_http_client(server.url, http_client=http) as (read, write),
    ):
        yield watch.over(read), write
