"""Notices the end of a connection, which the SDK does not report, and adapts the SDK's logging to the proxy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import mcp_types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from addon.tools.mcp_errors import clean

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream  # private: for the type checker only

_LOGGERS = ("client", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher")


OUTPUT_SCHEMA = "toolgraft/outputSchema"
"""The key in a tool's `_meta` to which its outputSchema moves."""


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        record.msg, record.args = clean(record.getMessage()), ()
        record.exc_info = record.exc_text = None
        return True


_warning = _Warning()


def quiet_sdk() -> None:
    """Let the SDK log only warnings, and its HTTP client no URLs. May be called repeatedly."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_warning)
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
