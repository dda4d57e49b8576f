"""Limits the connections to the proxy's ports: their number, and the time of a request's head.

mitmproxy itself closes a connection only after ten minutes without a byte.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.proxy.server import ConnectionHandler

from addon.hooks.connection_state import FIRST_HEAD, Head, awaited_head, is_in_use
from addon.hooks.lifecycle import Lifecycle

logger = logging.getLogger("toolgraft")

_OUT_OF_DESCRIPTORS = "socket.accept() out of system resource"  # asyncio's message
_PAUSE = 60.0  # seconds between two warnings of the same kind
_SEARCH_PAUSE = 0.1  # seconds after a search for an idle connection that found none


@dataclass(slots=True)
class _Connection:
    """`awaited`: the request head that the connection owed at the last check."""

    handler: ConnectionHandler
    awaited: Head | None = FIRST_HEAD
    check: asyncio.TimerHandle | None = None


class Connections:
    """If there are too many connections, the longest idle one is closed for the new one. If none is idle, the new one
    is closed. A connection whose request head takes too long is closed as well."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._open: dict[str, _Connection] = {}
        self._warn_at = 0.0
        self._search_at = 0.0

    def running(self) -> None:
        """Log one warning instead of asyncio's tracebacks."""
        loop = asyncio.get_running_loop()
        previous = loop.get_exception_handler()

        def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if context.get("message") == _OUT_OF_DESCRIPTORS:
                self._warn("there are no file descriptors left: connections wait; raise the limit (ulimit -n)")
            elif previous is not None:
                previous(loop, context)
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(handler)

    def client_connected(self, client: Client) -> None:
        runtime = self._lifecycle.runtime
        handler = ctx.master.addons.get("proxyserver").connections.get(client.id)
        if runtime is None or handler is None:
            return
        if len(self._open) >= runtime.connection_limits.proxy and not self._evict():
            client.error = "too many connections"
            self._warn(f"the proxy has {len(self._open)} connections, all in use: no more (graft_max_connections)")
            return
        self._open[client.id] = _Connection(handler)
        if client.transport_protocol == "tcp":
            self._check_later(client.id, runtime.settings.header_timeout)

    def client_disconnected(self, client: Client) -> None:
        self._forget(client.id)

    def _evict(self) -> bool:
        """Close the longest idle connection. Returns whether there was one."""
        now = time.monotonic()
        if now < self._search_at:
            return False
        by_age = sorted(self._open.items(), key=lambda item: item[1].handler.timeout_watchdog.last_activity)
        for client_id, one in by_age:
            if not is_in_use(one.handler):
                self._close(client_id, "there are too many (graft_max_connections), and it was idle the longest")
                return True
        self._search_at = now + _SEARCH_PAUSE
        return False

    def _check_later(self, client_id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._open[client_id].check = loop.call_later(seconds, self._check, client_id, seconds)

    def _check(self, client_id: str, seconds: float) -> None:
        """Close the connection if it still owes the head that it owed at the last check."""
        one = self._open[client_id]
        before, one.awaited = one.awaited, awaited_head(one.handler)
        if one.awaited is not None and one.awaited == before:
            self._close(client_id, f"no request's headers have come within {seconds:g} s (graft_header_timeout)")
        else:
            self._check_later(client_id, seconds)

    def _close(self, client_id: str, why: str) -> None:
        handler = self._open[client_id].handler
        self._forget(client_id)
        found = handler.transports.get(handler.client)
        if found is not None and found.handler is not None:
            handler.log(f"the connection is closed: {why}")
            found.handler.cancel(why)

    def _forget(self, client_id: str) -> None:
        one = self._open.pop(client_id, None)
        if one is not None and one.check is not None:
            one.check.cancel()

    def _warn(self, words: str) -> None:
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + _PAUSE
            logger.warning(words)
