"""Serves the control API in the proxy's event loop.

uvicorn's server without signal handlers, logging set-up and `sys.exit`, which `serve` would add. The socket is bound
first, so that a port in use is an ordinary error. Connections have the limits that uvicorn lacks: their number, the
time in which a request's head must arrive, and an error message for a head that is too large.
"""

import asyncio
import errno
import json
import socket
import sys
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from addon.core.framing.replies import RETRY_AFTER
from addon.web import tasks
from addon.web.problems import MEDIA_TYPE

_GRACE = 1
"""Seconds for answers to finish."""

_CHOOSE = "choose another with --set graft_control=host:port"


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


_BOUNDS = Bounds()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 chooses a free port. Raises OSError with a message that says what to do."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        # Without the protocol, asyncio does not recognise TCP, and Nagle's delay stays on.
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(where)
            # bind alone does not detect a port in use: two sockets can be bound to a port while neither listens.
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        what = "is taken" if error.errno == errno.EADDRINUSE else "cannot be used"
        raise OSError(f"control API: {address} {what} ({error.strerror}): {_CHOOSE}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL of a listening socket for clients on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class StoppableApp(Protocol):
    """An ASGI application that ends its long polls and event streams on `stop`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def stop(self) -> None: ...


class ControlServer:
    """Serves `app` on `listener`, and closes it at the end."""

    def __init__(self, app: StoppableApp, listener: socket.socket, *, bounds: Bounds = _BOUNDS) -> None:
        self._app = app
        self._listener = listener
        self.url = url_of(listener)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, bounds),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=bounds.head,
                ws="wsproto",
                ws_max_size=bounds.message,
                ws_per_message_deflate=False,  # a small frame could become a large message
                lifespan="off",
                loop="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_GRACE,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the server accepts requests."""
        config, server = self._server.config, self._server
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._listener])
        self._task = tasks.spawn(server.main_loop(), name="control API")

    def stop_listening(self) -> None:
        """Accept no new connections, and close each one after its current answer."""
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    async def stop(self) -> None:
        """End long answers, give the others a moment, and close everything. May be called twice."""
        self._app.stop()
        if self._task is None:
            self._listener.close()
            return
        task, self._task = self._task, None
        await tasks.cancel(task)
        for server in self._server.servers:
            server.close()
        self._listener.close()
        state = self._server.server_state
        if state.connections or state.tasks:  # uvicorn's shutdown waits even without connections
            await self._server.shutdown(sockets=[self._listener])
        for server in self._server.servers:
            server.abort_clients()
