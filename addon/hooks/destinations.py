"""Sends a request to its destination: a loop, another host, or its own host.

To mitmproxy a loop is one more connection of its HTTP layer, which takes the request and returns an answer; it has no
socket and no address that a hook could see. A request to another host is sent as a copy.

A connection to a server serves one credential only, as for loops (`addon.tools.http_connections`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from mitmproxy import http
from mitmproxy.connection import Connection, Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import GetHttpConnection, HttpLayer, HttpStream
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestEndOfMessage,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)

from addon.core.security.secrets import credentials
from addon.hooks.messages import new_response
from addon.loop.runner import Head
from addon.loop.server import LoopAnswer

Connecting = Generator[commands.Command, Any, bool]
"""Connects a stream to its server. Returns whether it is connected."""

_WITHOUT_BODY = (204, 304)

_owners: WeakKeyDictionary[Connection, tuple[bytes, ...]] = WeakKeyDictionary()
"""The credentials that each connection was used with."""


def on_own_connection(flow: http.HTTPFlow, connecting: Connecting) -> Connecting:
    """Connects without reusing a connection of other credentials: late or surplus bytes from the server would end up in
    another user's answer. A client may be a gateway, which sends many people's requests over one connection."""
    owner = credentials(flow.request.path, flow.request.headers.fields)
    command = next(connecting)
    while True:
        if isinstance(command, GetHttpConnection):
            _match_owner(command, owner)
        reply = yield command
        vars(command).pop("connection_spec_matches", None)  # refers to the command, which would stay until gc runs
        try:
            command = connecting.send(reply)
        except StopIteration as end:
            if end.value:
                _owners[flow.server_conn] = owner
            return bool(end.value)


def _match_owner(command: GetHttpConnection, owner: tuple[bytes, ...]) -> None:
    matches = command.connection_spec_matches

    def matches_owner(connection: Connection) -> bool:
        return matches(connection) and _owners.get(connection, owner) == owner

    command.connection_spec_matches = matches_owner  # type: ignore[method-assign]


def send_elsewhere(stream: HttpStream, request: http.Request) -> Connecting:
    """Connects to another host and sends it this request."""
    flow = stream.flow
    connection, error = yield GetHttpConnection(
        (request.host, request.port), request.scheme == "https", None, flow.server_conn.transport_protocol
    )
    if error:
        failure = ResponseProtocolError(stream.stream_id, error, ErrorCode.CONNECT_FAILED)
        yield from stream.handle_protocol_error(failure)
        return False
    stream.context.server = flow.server_conn = connection
    original, flow.request = flow.request, request
    # before the event loop's next turn, mitmproxy sends the head, or all, of the flow's current request
    asyncio.get_running_loop().call_soon(_put_back, flow, request, original)
    return True


def _put_back(flow: http.HTTPFlow, sent: http.Request, original: http.Request) -> None:
    if flow.request is sent:
        flow.request = original


class MorePieces(commands.RequestWakeup):
    """Asks mitmproxy for an event once the client has all bytes so far and more of the answer is in `pieces`."""

    def __init__(self, stream_id: int, answering: LoopAnswer) -> None:
        super().__init__(0.0)
        self.stream_id = stream_id
        self.answering = answering
        self.pieces: Sequence[Head | bytes] = ()

    async def arrive(self, drain: Callable[[], Awaitable[None]]) -> None:
        try:
            await drain()
            self.pieces = await self.answering.take()
        except asyncio.CancelledError:
            self.answering.cancel()
            raise


class Loops(layer.Layer):
    """Replaces a server's connection in mitmproxy's HTTP layer: requests in, answers of loops out. One instance serves
    all loops of a client's connection."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.server = Server(address=None)
        self.answers: dict[int, LoopAnswer] = {}

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, RequestEndOfMessage):
            if (answering := self.answers.get(event.stream_id)) is not None:
                yield MorePieces(event.stream_id, answering)
        elif isinstance(event, RequestProtocolError):
            if (answering := self.answers.pop(event.stream_id, None)) is not None:
                answering.cancel()
        elif isinstance(event, events.Wakeup) and isinstance(event.command, MorePieces):
            yield from self._continue(event.command)
        # the request's head and body are ignored: the loop has them from the flow

    def _continue(self, more: MorePieces) -> layer.CommandGenerator[None]:
        stream_id, answering = more.stream_id, more.answering
        for piece in more.pieces:
            if self.answers.get(stream_id) is not answering:
                return  # the client hung up, or an addon killed the flow
            if isinstance(piece, Head):
                yield ReceiveHttp(ResponseHeaders(stream_id, _response(piece)))
            elif piece:
                yield ReceiveHttp(ResponseData(stream_id, piece))
        if self.answers.get(stream_id) is not answering:
            return
        if not answering.over:
            yield MorePieces(stream_id, answering)
            return
        del self.answers[stream_id]
        if answering.error is None:
            yield ReceiveHttp(ResponseEndOfMessage(stream_id))
        else:
            message = f"the answer broke off: {answering.error}"
            yield ReceiveHttp(ResponseProtocolError(stream_id, message, ErrorCode.GENERIC_SERVER_ERROR))


def _response(head: Head) -> http.Response:
    # HTTP/1 needs this to find the end of a body; mitmproxy removes the header for HTTP/2
    ends = () if head.status in _WITHOUT_BODY else ((b"transfer-encoding", b"chunked"),)
    return new_response(head.status, [*head.headers, *ends])


def take_over(stream: HttpStream, answering: LoopAnswer) -> None:
    """Let a loop answer the stream's request instead of its server."""
    layers = stream.context.layers
    parent = layers[layers.index(stream) - 1]
    assert isinstance(parent, HttpLayer)
    found = next((child for child in parent.connections.values() if isinstance(child, Loops)), None)
    if found is None:
        found = Loops(stream.context.fork())
        parent.connections[found.server] = found
    stream.context.server = found.server
    found.answers[stream.stream_id] = answering
