"""The end of a process that another one has replaced: it accepts nothing new, finishes what it has, and ends."""

import asyncio
import logging
import time

from mitmproxy import ctx, http

from addon.hooks.connection_state import is_in_use
from addon.hooks.lifecycle import Lifecycle
from addon.supervisor.membership import Membership
from addon.web import tasks

logger = logging.getLogger("toolgraft")

_IDLE = 2.0
"""Seconds without a byte after which a kept connection is closed: a client may be sending its next request."""

_POLL_INTERVAL = 0.05

_END = 90.0
"""Seconds that the end of this process takes at most after the drain: then something is stuck."""


class Retirement:
    """Unlike at the proxy's end, requests on connections that clients keep are still served, and told to close."""

    def __init__(self, lifecycle: Lifecycle, membership: Membership) -> None:
        self._lifecycle = lifecycle
        self._membership = membership
        self._is_retiring = False

    def running(self) -> None:
        runtime = self._lifecycle.runtime
        if runtime is None or not runtime.is_serving:
            return  # the start has failed, and mitmproxy ends
        self._membership.say_ready(
            ends_within=(runtime.settings.drain_timeout or 0) + _END,
            describe=runtime.describe,
            retire=self._retire,
            orphaned=self._end,
        )

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        self._have_closed(flow)

    def response(self, flow: http.HTTPFlow) -> None:
        self._have_closed(flow)

    def _have_closed(self, flow: http.HTTPFlow) -> None:
        if self._is_retiring and flow.response is not None and not flow.request.is_http2:
            flow.response.headers["connection"] = "close"

    def _retire(self) -> None:
        if not self._is_retiring:
            self._is_retiring = True
            tasks.spawn(self._finish(), name="the end of a replaced process")

    async def _finish(self) -> None:
        runtime = self._lifecycle.runtime
        server = ctx.master.addons.get("proxyserver")
        if runtime is None:
            return
        await server.servers.update([])
        runtime.stop_listening()
        deadline = time.monotonic() + (runtime.settings.drain_timeout or 0)
        while (server.connections or runtime.active_requests) and time.monotonic() < deadline:
            for handler in list(server.connections.values()):
                found = handler.transports.get(handler.client)
                idle = time.time() - handler.timeout_watchdog.last_activity
                if found is not None and found.handler is not None and idle > _IDLE and not is_in_use(handler):
                    found.handler.cancel("the process was replaced")
            await asyncio.sleep(_POLL_INTERVAL)
        self._end()

    def _end(self) -> None:
        ctx.master.shutdown()
