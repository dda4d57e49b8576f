"""Serves the control API in the proxy's event loop.

uvicorn's server without signal handlers, logging set-up and `sys.exit`, which `serve` would add. The socket is bound
first, so that a port in use is an ordinary error.
"""

import asyncio
import errno
import socket
import sys
from functools import partial
from typing import Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from addon.web import tasks
from addon.web.uvicorn_limits import BoundedProtocol, Bounds

_BOUNDS = Bounds()
_GRACE = 1
"""Seconds for answers to finish."""
_CHOOSE = "choose another with --set graft_control=host:port"


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
