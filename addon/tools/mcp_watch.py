"""What the SDK does not tell: that a connection has ended. And its logging, made fit for a proxy."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from mcp.client._transport import ReadStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from addon.tools.mcp_errors import plain
from addon.tools.mcp_tools import screened

_LOGGERS = ("client", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher")


class Watch:
    """The end of a connection, and news of its tools, for the one task that waits for both.

    `lost` is called at the end itself, before that task gets to run: no call shall meet a connection that is gone.
    `left_out` is told of what is no tool in a listing.
    """

    def __init__(self, lost: Callable[[], None], left_out: Callable[[str, str], None]) -> None:
        self.left_out = left_out
        self.stopped = False
        self.ended = False
        self._lost = lost
        self._news = False
        self._event = asyncio.Event()

    def begin(self) -> None:
        """A new connection: what was told of the last one is past."""
        self.ended = self._news = False

    def end(self) -> None:
        self.ended = True
        self._event.set()
        self._lost()

    def stop(self) -> None:
        """End this connection, and have no other."""
        self.stopped = True
        self._event.set()

    def changed(self) -> None:
        self._news = True
        self._event.set()

    async def wait(self) -> bool:
        """True when there is news of the tools, False when the connection has ended or is to end."""
        while not (self.ended or self.stopped):
            if self._news:
                self._news = False
                return True
            self._event.clear()
            await self._event.wait()
        return False

    def over(self, stream: ReadStream[SessionMessage | Exception]) -> "WatchedStream":
        """The stream, whose end is told here."""
        return WatchedStream(stream, self)


class WatchedStream:
    """A read stream of a transport that tells of its end."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], watch: Watch) -> None:
        self._stream = stream
        self._watch = watch

    @property
    def last_context(self) -> Any:
        """The sender's context, where the transport keeps it; the SDK asks for it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return self._screened(await self._stream.receive())

    def _screened(self, message: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            screened(message.message.result, self._watch.left_out)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return self._screened(await self._stream.__anext__())
        except Exception:  # StopAsyncIteration among them
            self._watch.end()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Warning(logging.Filter):
    """Makes errors warnings, without their stack: an ERROR while mitmproxy starts would end it. URLs, ids and messages
    are kept out of the log, and so is all that is less than a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return False
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = plain(record.getMessage()), ()
        record.exc_info = record.exc_text = None
        return True


_warning = _Warning()


def quiet_sdk() -> None:
    """Have the SDK's clients log warnings alone, and its HTTP client no URLs. May be called any number of times."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_warning)
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
