"""Limits the connections to the proxy's ports, with one warning if there are too many."""

import asyncio
import logging
import time
from typing import Any

from mitmproxy.connection import Client

from addon.hooks.lifecycle import Lifecycle

logger = logging.getLogger("toolgraft")

_OUT_OF_DESCRIPTORS = "socket.accept() out of system resource"  # asyncio's message
_PAUSE = 60.0  # seconds between two warnings of the same kind


class Connections:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._open: set[str] = set()
        self._warn_at = 0.0

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
        if runtime is None:
            return
        if len(self._open) >= runtime.connection_limits.proxy:
            client.error = "too many connections"
            self._warn(f"the proxy has {len(self._open)} connections, and takes no more (graft_max_connections)")
            return
        self._open.add(client.id)

    def client_disconnected(self, client: Client) -> None:
        self._open.discard(client.id)

    def _warn(self, words: str) -> None:
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + _PAUSE
            logger.warning(words)
