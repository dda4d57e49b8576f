"""Requests in flight: the proxy waits for them before it ends, and a waiting request ends if its client hangs up."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from functools import partial

from mitmproxy import ctx, http
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.proxy.events import MessageInjected
from mitmproxy.proxy.layers.http._events import ErrorCode, ResponseProtocolError

from addon.core.framing import replies
from addon.core.summaries import count
from addon.hooks.messages import FlowState, unavailable
from addon.hooks.mitmproxy_patches import error_response
from addon.surfaces.incoming import Target

logger = logging.getLogger("toolgraft")

_POLL_INTERVAL = 0.02
"""Seconds between two checks for requests in flight. mitmproxy has no event for the end of a response."""

_FAREWELL = 1.0
"""Seconds for sending clients the error that the proxy ends."""


class _Interruption(ResponseProtocolError, MessageInjected[str]):
    """Tells the HTTP stream of a flow that no answer will come. mitmproxy routes only injected messages to the stream
    of a flow, and none over HTTP/2."""

    def __init__(self, flow: http.HTTPFlow) -> None:
        super().__init__(0, replies.PROXY_ENDING, ErrorCode.GENERIC_SERVER_ERROR)
        self.flow = flow


class InFlight:
    """The model requests that clients wait for. Live connections do not count: nothing limits their duration."""

    def __init__(self) -> None:
        self._flows: dict[int, tuple[http.HTTPFlow, Target]] = {}
        self.is_over = False
        """Whether the drain is over, so that nothing may wait any longer."""

    def add(self, flow: http.HTTPFlow, target: Target) -> None:
        self._flows[id(flow)] = flow, target

    def response(self, flow: http.HTTPFlow) -> None:
        self._flows.pop(id(flow), None)

    def error(self, flow: http.HTTPFlow) -> None:
        self._flows.pop(id(flow), None)

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def flows(self) -> list[http.HTTPFlow]:
        return [flow for flow, _ in self._flows.values()]

    async def cut_off(self, others: FlowState[bool]) -> None:
        """End the requests that are still arriving or whose answers are still to come. Returns when the error was sent
        to their clients. The proxy itself answers the flows in `others`."""
        self.is_over = True
        left = [one for one in self._flows.values() if one[0] not in others]
        for flow, target in left:
            error_response[flow] = partial(_cut_off, target)
            if flow.request.timestamp_end is None:
                _interrupt(flow, target)
        for client in {flow.client_conn for flow, _ in left}:
            handler = ctx.master.addons.get("proxyserver").connections.get(client.id)
            for connection, transport in list(handler.transports.items()) if handler is not None else ():
                if connection is not client and transport.handler is not None:
                    transport.handler.cancel(replies.PROXY_ENDING)  # as if the upstream had hung up
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                while any(flow.live for flow, _ in left):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_INTERVAL)


def _interrupt(flow: http.HTTPFlow, target: Target) -> None:
    """Answer a request that is still arriving. Possible with HTTP/1 only; HTTP/2 connections are closed at the end."""
    if flow.request.is_http2 or flow.request.is_http3:
        logger.warning("ending: a request was still being sent over HTTP/2, and its connection is closed")
        return
    error_response[flow] = partial(_cut_off, target, closes=True)
    with contextlib.suppress(ValueError):  # its connection has just closed
        ctx.master.addons.get("proxyserver").inject_event(_Interruption(flow))


def _cut_off(target: Target, _: str, *, closes: bool = False) -> http.Response:
    response = unavailable(target)
    if closes:
        response.headers["connection"] = "close"
    return response


async def drain(timeout: float, in_flight: Callable[[], int]) -> None:
    """Close the proxy's ports and wait for the requests in flight, for `timeout` seconds or until a second signal."""
    await ctx.master.addons.get("proxyserver").servers.update([])
    if not in_flight():
        return
    number = in_flight()
    have, them = ("has", "it") if number == 1 else ("have", "them")
    logger.info(f"ending: {count(number, 'request')} {have} {timeout:g} s to finish; a second signal ends {them} now")
    with _signalled() as signalled, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while in_flight() and not signalled.is_set():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_INTERVAL)
    if unfinished := in_flight():
        logger.warning(f"ending: {count(unfinished, 'request')} did not finish in time")


@contextlib.contextmanager
def _signalled() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set. mitmproxy, which handled them before, is already ending."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in other threads
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, event.set)
    yield event


_CLIENT_POLL_INTERVAL = 0.2
"""Seconds between two checks that a waiting client is still connected."""


class Hangup:
    """Detects that the client of a waiting request has closed its side, or that the proxy must not wait any longer.
    mitmproxy reports no disconnection while a hook runs, so the connection is polled.

    A client that has closed only its sending half counts as gone too: mitmproxy then closes an HTTP/1 connection."""

    def __init__(self, client: Client, in_flight: InFlight) -> None:
        self.client = client
        self.in_flight = in_flight
        self.waited = False

    async def wait(self) -> None:
        """Returns once the client has hung up, or the proxy ends."""
        self.waited = True
        while self.client.state is ConnectionState.OPEN and not self.in_flight.is_over:  # noqa: ASYNC110
            await asyncio.sleep(_CLIENT_POLL_INTERVAL)

    @property
    def missed(self) -> bool:
        """Whether the client hung up after the last check of a `wait` that was cancelled."""
        return self.waited and self.client.state is not ConnectionState.OPEN
