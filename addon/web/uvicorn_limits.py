"""Limits of connections to the control API's port that uvicorn lacks: their number, the time in which a request's head
must arrive, and an error message for a head that is too large. Also detects whether a client has its answer."""

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from addon.core.framing.replies import RETRY_AFTER
from addon.web.problems import MEDIA_TYPE


@dataclass(frozen=True, slots=True)
class Bounds:
    """`connections`: their number. `head`: bytes of the request line and headers, which must arrive within `seconds`.
    `message`: bytes of a WebSocket's message."""

    connections: int = 4096
    head: int = 65536
    seconds: float = 10.0
    message: int = 64 * 1024 * 1024


class BoundedProtocol(H11Protocol):
    """A connection beyond the limit closes the longest idle one; if none is idle, it is refused."""

    def __init__(self, bounds: Bounds, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, "flushed": self.flushed}
        self._bounds, self._is_lost = bounds, False  # lost: disconnected before a whole answer was written
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    async def flushed(self) -> bool:
        """Wait until the operating system has the whole answer. False: the client disconnected first."""
        await self.flow.drain()
        return not self._is_lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(True)
        if len(self.connections) > self._bounds.connections:
            idle = [one for one in self.connections if isinstance(one, BoundedProtocol) and one.is_idle]
            if longest := min((one for one in idle if one is not self), key=lambda one: one._idle_since, default=None):
                self.connections.discard(longest)
                longest.transport.abort()
            else:
                self._refuse(503, "too many open connections (graft_max_connections): try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(False)
        self.eof_received()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        self._is_lost = self._is_lost or not self.is_idle or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), self._bounds.head):  # h11 checks the size after each piece
            if not self.transport.is_closing() and self.transport.get_protocol() is self:
                super().data_received(data[start : start + self._bounds.head])

    def handle_events(self) -> None:
        super().handle_events()
        self._set_timer(self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        self._is_lost = self._is_lost or (self.transport.is_closing() and self.conn.our_state is not h11.CLOSED)
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(0)  # writing is paused until nothing is left
        super().on_response_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.set_write_buffer_limits()

    def send_400_response(self, msg: str) -> None:
        if len(self.conn.trailing_data[0]) > self._bounds.head:
            self._refuse(431, f"the request's headers have more than {self._bounds.head} bytes (graft_max_headers)")
        else:
            super().send_400_response(msg)

    def _set_timer(self, on: bool) -> None:
        if on and self._timer is None:
            words = f"the request's headers have not come within {self._bounds.seconds:g} s (graft_header_timeout)"
            self._timer = self.loop.call_later(self._bounds.seconds, self._refuse, 408, words)
        elif not on and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, detail: str) -> None:
        title = HTTPStatus(status).phrase
        body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail})
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        head += f"retry-after: {RETRY_AFTER}\r\n" if status == 503 else ""
        if not self.transport.is_closing():
            self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
            self.transport.close()
