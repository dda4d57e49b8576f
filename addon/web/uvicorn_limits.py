"""Limits for connections to the control API's port: their number, the time and size of a request's head, and the size
of a WebSocket's message.

uvicorn waits for a first request without a limit, and accepts a head of any size.
"""

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from addon.core.framing.replies import RETRY_AFTER
from addon.web.problems import MEDIA_TYPE


@dataclass(frozen=True, slots=True)
class Bounds:
    """`connections`: at once. `head`: bytes of the request line and headers, which must arrive within `seconds`.
    `message`: bytes of a WebSocket's message."""

    connections: int = 4096
    head: int = 65536
    seconds: float = 10.0
    message: int = 64 * 1024 * 1024


class _AnswerTransport:
    """The transport of one answer. uvicorn writes head and body one after the other: here they are one write, if the
    body comes at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._has_begun = False
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun, self._head = True, data
            self._loop.call_soon(self._write_head)
            return
        data, self._head = self._head + data, b""
        self._transport.write(data)

    def close(self) -> None:
        self._write_head()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _write_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class BoundedProtocol(HttpToolsProtocol):
    """If there are too many connections, the longest idle one is closed for the new one. If none is idle, the new one
    is refused."""

    def __init__(self, bounds: Bounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._clock: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._is_disconnected = False
        """Whether the client disconnected before a whole answer was written."""
        self._head: int | None = 0
        """Bytes of the current head after its first piece; None while no head is being read."""
        self._is_parsing = False
        self._next: tuple[RequestResponseCycle, Any] | None = None
        """A request that begins when all bytes at hand are parsed: its body, too, then takes no further turn of the
        event loop."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._watch()
        if len(self.connections) > self._bounds.connections:
            others = (one for one in self.connections if isinstance(one, BoundedProtocol) and one.is_idle)
            longest = min((one for one in others if one is not self), key=lambda one: one._idle_since, default=None)
            if longest is not None:
                longest.connections.discard(longest)
                longest.transport.abort()
            else:
                self._refuse(503, "too many open connections (graft_max_connections): try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._note_disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        self._note_disconnect()
        super().eof_received()

    def _note_disconnect(self) -> None:
        self._is_disconnected = self._is_disconnected or not self.is_idle or self.flow.write_paused

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.set_write_buffer_limits()

    async def flushed(self) -> bool:
        """Wait until the operating system has the whole answer. Returns whether the client was still connected."""
        await self.flow.drain()
        return not self._is_disconnected

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        before, answered = self._head, self.server_state.total_requests
        self._is_parsing = True
        super().data_received(data)
        self._is_parsing = False
        if self.transport.get_protocol() is not self:  # a WebSocket from now on
            self._unwatch()
            return
        if self._next is not None:
            (cycle, app), self._next = self._next, None
            if not self.transport.is_closing():
                self._start_asgi_task(cycle, app)
        # In mitmproxy's event loop a task begins at once, so a request may have been answered already.
        is_over = self.is_idle and self.server_state.total_requests == answered
        if self._clock is None and (self._head is not None or is_over):  # a head has begun, or something else
            self._watch()
        if before is not None and self._head is not None:
            self._head += len(data)
            if self._head > self._bounds.head:
                self._too_large()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["flushed"] = self.flushed  # type: ignore[typeddict-unknown-key]
        self._head = 0
        self._unwatch()

    def on_headers_complete(self) -> None:
        self._unwatch()
        self._head = None
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._bounds.head:
            self._too_large()
        if self.transport.is_closing():
            return
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_parsing:
            self._next = cycle, app
            return
        cycle.transport = _AnswerTransport(self.transport, self.loop)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        if self.cycle.keep_alive and self.transport.is_closing():  # otherwise uvicorn has closed it
            self._is_disconnected = True
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(0)  # writing is paused until nothing is left
        super().on_response_complete()

    def _watch(self) -> None:
        self._unwatch()
        self._clock = self.loop.call_later(self._bounds.seconds, self._too_slow)

    def _unwatch(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        words = f"the request's headers have not come within {self._bounds.seconds:g} s (graft_header_timeout)"
        self._refuse(408, words)

    def _too_large(self) -> None:
        self._refuse(431, f"the request's headers have more than {self._bounds.head} bytes (graft_max_headers)")

    def _refuse(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        title = HTTPStatus(status).phrase
        body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        if status == 503:
            head += f"retry-after: {RETRY_AFTER}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
