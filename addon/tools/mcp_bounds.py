"""Limits the size of an MCP server's messages: the SDK reads lines, events and bodies of any length."""

import contextvars
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import httpx2
import mcp.client.stdio
from anyio.streams.text import TextReceiveStream

from addon.tools.http_connections import trust

_log = logging.getLogger(__name__)

_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_BLANK_LINE = 4


@dataclass(frozen=True, slots=True)
class McpBounds:
    """Limits of one server: number of tools, bytes of a tool, bytes of a message (a line)."""

    tools: int = 1000
    tool: int = 262_144
    line: int = 16 * 1024 * 1024


longest_line = contextvars.ContextVar("longest_line", default=McpBounds().line)
"""Limit for the server whose process this context starts."""


class _Text(TextReceiveStream):
    """The stdout of a server's process. Ends the connection at a line that is too long."""

    _line = 0

    async def receive(self) -> str:
        text = await super().receive()
        newline = text.rfind("\n")
        self._line = self._line + len(text) if newline < 0 else len(text) - newline - 1
        if self._line > longest_line.get():
            _log.warning("an MCP server wrote a line of more than %d bytes (graft_max_line)", longest_line.get())
            await self.transport_stream.aclose()  # the SDK would read on until the process ends
            raise anyio.EndOfStream
        return text


if not hasattr(mcp.client.stdio, "TextReceiveStream"):
    raise ImportError("this version of the MCP SDK reads lines in another way, without a limit")
mcp.client.stdio.TextReceiveStream = _Text


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Refuses compressed answers, and bodies or stream events of more than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(verify=trust())
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.ReadError("the answer is compressed, although identity was requested")
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _Bounded(response.stream, self._max_bytes, events=events)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, *, events: bool) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, tail = 0, b""
        async for chunk in self._stream:
            size += len(chunk)
            if self._events:
                tail = tail[-_LONGEST_BLANK_LINE + 1 :] + chunk
                end = max(tail.rfind(blank) for blank in _BLANK_LINES)
                size = size if end < 0 else len(tail) - end
            if size > self._max_bytes:
                _log.warning("an MCP server sent a message of more than %d bytes (graft_max_line)", self._max_bytes)
                raise httpx2.ReadError("the message is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
