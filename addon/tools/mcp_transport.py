"""The transport to an MCP server: a child process (stdio) or streamable HTTP, with what the SDK lacks: limits of
messages, a log of the process's stderr, notice of the connection's end, and error messages without data."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

import anyio
import httpx2
import mcp.client.stdio
import mcp_types
from anyio.streams.text import TextReceiveStream
from mcp import MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from addon.tools.base import ToolError
from addon.tools.http_connections import trust
from addon.tools.mcp_config import Server

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams  # private: for the type checker only

MAX_CHARACTERS = 500
_URL = re.compile(r"(https?://)(?:[^\s/?#'\"]*@)?([^\s/?#'\"]*)[^\s'\"]*")
_NO_ANSWER = "its answer is not an MCP message"
_REPLACEMENTS = (
    ("Redirect to ", "it redirects to another URL, which is not followed: check its configured url"),
    ("Failed to parse ", _NO_ANSWER),
    ("Error parsing ", _NO_ANSWER),
    ("Unexpected content type", _NO_ANSWER),
    ("Invalid structured content returned by tool", "its result does not fit the tool's outputSchema"),
    ("Invalid schema for tool", "the tool's outputSchema cannot be used"),
)
"""Beginnings of SDK messages that quote data, and their replacements."""

_log = logging.getLogger(__name__)
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_BLANK_LINE = 4
_MAX_STDERR_LINE = 2000  # bytes
_MAX_STDERR_LINES = 50  # of one read: endless output must not block the event loop
_DRAIN_TIMEOUT = 0.5  # seconds for the last output
_LOGGERS = ("client", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher")
OUTPUT_SCHEMA = "toolgraft/outputSchema"
"""The key in a tool's `_meta` to which its outputSchema moves."""

_TIMEOUT = httpx2.Timeout(30, read=None)  # callers set their own timeouts


def describe_failure(error: BaseException) -> str:
    """Why a server cannot be used or did not answer a call."""
    match error := first_cause(error):
        case MCPError():
            return clean_message(error.message)
        case ValidationError():
            return _NO_ANSWER
        case httpx2.ConnectError():
            return clean_message(str(error)) or "the connection failed"
        case httpx2.TransportError():
            return "the connection broke"
        case TimeoutError():
            return "it did not answer in time"
        case OSError():
            message = error.strerror or type(error).__name__
            return f"{message}: {Path(error.filename).name}" if isinstance(error.filename, str) else message
        case RuntimeError() | ValueError() | ToolError():
            return clean_message(str(error)) or type(error).__name__
        case _:
            return type(error).__name__


def first_cause(error: BaseException) -> BaseException:
    """The first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def says_only_that_it_failed(message: str) -> bool:
    """Whether this is the SDK's message for an HTTP error status without details."""
    return message in ("Server returned an error response", "Not Found")


def clean_message(message: str) -> str:
    """A message of the SDK or a server on one line, without URLs' paths and quoted data."""
    for beginning, instead in _REPLACEMENTS:
        if message.startswith(beginning):
            return instead
    message = " ".join(_URL.sub(r"\1\2", message).split()).encode("utf-8", "replace").decode()
    return message if len(message) <= MAX_CHARACTERS else f"{message[: MAX_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class McpBounds:
    """Limits of one server: number of tools, bytes of a tool, bytes of a message (a line)."""

    tools: int = 1000
    tool: int = 262_144
    line: int = 16 * 1024 * 1024


longest_line = contextvars.ContextVar("longest_line", default=McpBounds().line)
"""Limit for the server whose process this context starts."""


class _BoundedStdout(TextReceiveStream):
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
mcp.client.stdio.TextReceiveStream = _BoundedStdout


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
        response.stream = _BoundedBody(response.stream, self._max_bytes, events=events)
        return response


class _BoundedBody(httpx2.AsyncByteStream):
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


@asynccontextmanager
async def stderr_file(log_line: Callable[[str], None]) -> AsyncGenerator[TextIO]:
    """A file for the process. `log_line` is called with each line."""
    if sys.platform == "win32":  # asyncio cannot wait for its pipes
        yield sys.__stderr__ or sys.stderr
        return
    reading, writing = os.pipe()
    lines = _StderrLines(log_line)
    loop = asyncio.get_running_loop()
    with os.fdopen(writing, "w") as file:
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", buffering=0))
        try:
            yield file
        finally:
            file.close()
            with anyio.move_on_after(_DRAIN_TIMEOUT, shield=True):  # a child of the process may keep the pipe open
                await lines.ended.wait()
            transport.close()


class _StderrLines(asyncio.Protocol):
    def __init__(self, log_line: Callable[[str], None]) -> None:
        self.ended = asyncio.Event()
        self._log_line = log_line
        self._partial = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_STDERR_LINE:
            lines.append(self._partial)
            self._partial = b""
        for line in lines[:_MAX_STDERR_LINES]:
            self._log(line)
        if len(lines) > _MAX_STDERR_LINES:
            self._log_line(f"({len(lines) - _MAX_STDERR_LINES} more lines)")

    def connection_lost(self, error: Exception | None) -> None:
        self._log(self._partial)
        self.ended.set()

    def _log(self, line: bytes) -> None:
        if text := line[:_MAX_STDERR_LINE].decode("utf-8", "replace").rstrip():
            self._log_line(text)


class ConnectionWatch:
    """The end of a connection and changes of its tools, for the one task that waits for both.

    `on_end` is called at the end itself, before that task runs, so that no call uses a connection that is gone.
    `on_invalid_tool` is called with the name of an invalid tool in a listing, and the reason.
    """

    def __init__(self, on_end: Callable[[], None], on_invalid_tool: Callable[[str, str], None]) -> None:
        self.on_invalid_tool = on_invalid_tool
        self.stopped = False
        self.ended = False
        self.has_streams = False  # whether a process was started, or a connection exists
        self._on_end = on_end
        self._tools_changed = False
        self._event = asyncio.Event()

    def begin(self) -> None:
        """Reset for a new connection."""
        self.ended = self._tools_changed = self.has_streams = False

    def end(self) -> None:
        self.ended = True
        self._event.set()
        self._on_end()

    def stop(self) -> None:
        """End this connection, and do not reconnect."""
        self.stopped = True
        self._event.set()

    def changed(self) -> None:
        self._tools_changed = True
        self._event.set()

    async def wait(self) -> bool:
        """Returns True if the tools have changed, False if the connection has ended or must end."""
        while not (self.ended or self.stopped):
            if self._tools_changed:
                self._tools_changed = False
                return True
            self._event.clear()
            await self._event.wait()
        return False

    def wrap(self, stream: ReadStream[SessionMessage | Exception]) -> WatchedStream:
        """The stream, with its end reported here."""
        self.has_streams = True
        return WatchedStream(stream, self)


class WatchedStream:
    """A transport's read stream that reports its end."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], watch: ConnectionWatch) -> None:
        self._stream = stream
        self._watch = watch

    @property
    def last_context(self) -> Any:
        """The sender's context, if the transport has it; the SDK asks for it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return self._checked(await self._stream.receive())

    def _checked(self, message: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(message, SessionMessage) and isinstance(message.message, mcp_types.JSONRPCResponse):
            drop_invalid_tools(message.message.result, self._watch.on_invalid_tool)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return self._checked(await self._stream.__anext__())
        except Exception:  # StopAsyncIteration among them
            self._watch.end()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def drop_invalid_tools(result: Any, left_out: Callable[[str, str], None]) -> None:
    """Remove invalid tools from a result of `tools/list`, in place: the SDK would refuse the whole result. Move each
    outputSchema to `_meta`: the SDK would check results in the event loop, without a time limit."""
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return
    valid = []
    for number, tool in enumerate(tools):
        try:
            mcp_types.Tool.model_validate(tool, by_name=False)
            if schema := tool.pop("outputSchema", None):
                tool["_meta"] = (tool.get("_meta") or {}) | {OUTPUT_SCHEMA: schema}
            valid.append(tool)
        except ValidationError as e:
            name = tool.get("name") if isinstance(tool, dict) else None
            first = e.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            left_out(name if isinstance(name, str) else f"number {number}", f"{place}: {first['msg']}".lstrip(": "))
    result["tools"] = valid


class _Warning(logging.Filter):
    """Turns errors into warnings without a stack trace, because an ERROR while mitmproxy starts would end it. Removes
    URLs, ids and messages, and drops everything below a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return False
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = clean_message(record.getMessage()), ()
        record.exc_info = record.exc_text = None
        return True


_warning = _Warning()


def quiet_sdk() -> None:
    """Let the SDK log only warnings, and its HTTP client no URLs. May be called repeatedly."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_warning)
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


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
        async with stderr_file(on_stderr_line) as errlog, stdio_client(parameters, errlog=errlog) as (read, write):
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
