"""Chooses where a request goes once every addon has seen it: to a loop, to another host, or on as it stands.

A change to the flow would be seen by later addons, and their changes would be lost. The flow is therefore left alone.
When mitmproxy has run the hooks of a request and is about to connect, `choose_destination` is called. To mitmproxy a
loop is one more connection of its HTTP layer, which takes the request and returns an answer; it has no socket and no
address that a hook could see. A request that goes to another host is sent as a copy.

A connection to a server serves one credential only, as the connections of loops do (`addon.tools.owned_connections`).

For this, two methods of mitmproxy are replaced below. If mitmproxy lacks them, importing this module fails and the
proxy does not start.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import version
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
from mitmproxy.proxy.server import ConnectionHandler

from addon.core.security.credentials import credentials
from addon.hooks.flow_state import FlowState
from addon.hooks.headers import new_response
from addon.loop.runner import Head
from addon.loop.server import LoopAnswer

logger = logging.getLogger("toolgraft")

ChooseDestination = Callable[[http.HTTPFlow], LoopAnswer | http.Request | None]
"""Called once, after the hooks of a request. Returns the loop that answers it, the request to send instead, or None to
send it as it stands."""

choose_destination = FlowState[ChooseDestination]("choose_destination")

_WITHOUT_BODY = (204, 304)

_MISTAKE = "a mistake in the proxy itself; its log says which"


def check(owner: type, *names: str) -> None:
    """Raises RuntimeError if mitmproxy lacks one of these methods."""
    missing = [name for name in names if not callable(getattr(owner, name, None))]
    if missing:
        raise RuntimeError(
            f"toolgraft does not fit mitmproxy {version('mitmproxy')}: its {owner.__qualname__} has no "
            f"{', '.join(missing)}. Install mitmproxy 12 (12.2 or newer)."
        )


check(HttpStream, "make_server_connection", "state_consume_request_body", "state_wait_for_response_headers")
check(HttpLayer, "event_to_child")
check(GetHttpConnection, "connection_spec_matches")
check(ConnectionHandler, "wakeup", "drain_writers", "server_event")

_make_server_connection = HttpStream.make_server_connection
_wakeup = ConnectionHandler.wakeup


def make_server_connection(self: HttpStream) -> Generator[commands.Command, Any, bool]:
    """As mitmproxy's, except for flows with another destination."""
    choose = choose_destination.pop(self.flow)
    try:
        destination = choose(self.flow) if choose is not None else None
    except Exception:
        logger.exception("a request was not sent on")
        failure = ResponseProtocolError(self.stream_id, _MISTAKE, ErrorCode.GENERIC_SERVER_ERROR)
        yield from self.handle_protocol_error(failure)
        return False
    if destination is None:
        return (yield from _on_own_connection(self.flow, _make_server_connection(self)))
    if isinstance(destination, http.Request):
        return (yield from _on_own_connection(self.flow, _send_instead(self, destination)))
    _loops_of(self).answers[self.stream_id] = destination
    return True


HttpStream.make_server_connection = make_server_connection  # type: ignore[method-assign]


_owners: WeakKeyDictionary[Connection, tuple[bytes, ...]] = WeakKeyDictionary()
"""The credentials that each connection was used with."""


def _on_own_connection(
    flow: http.HTTPFlow, connecting: Generator[commands.Command, Any, bool]
) -> Generator[commands.Command, Any, bool]:
    """Connects without reusing a connection of other credentials: late or surplus bytes from the server would end up in
    somebody else's answer. A client may be a gateway, which sends many people's requests over one connection."""
    owner = credentials(flow.request.path, flow.request.headers.fields)
    command = next(connecting)
    while True:
        if isinstance(command, GetHttpConnection):
            _match_owner(command, owner)
        reply = yield command
        vars(command).pop("connection_spec_matches", None)  # it refers to the command, which would stay until gc runs
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


def _send_instead(stream: HttpStream, request: http.Request) -> Generator[commands.Command, Any, bool]:
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
    # before the loop's next turn mitmproxy sends the head, or all, of the request that the flow holds now
    asyncio.get_running_loop().call_soon(_put_back, flow, request, original)
    return True


def _put_back(flow: http.HTTPFlow, sent: http.Request, original: http.Request) -> None:
    if flow.request is sent:
        flow.request = original


class _MorePieces(commands.RequestWakeup):
    """Asks mitmproxy for an event when more of the answer is available, in `pieces`."""

    def __init__(self, stream_id: int, answering: LoopAnswer) -> None:
        super().__init__(0.0)
        self.stream_id = stream_id
        self.answering = answering
        self.pieces: Sequence[Head | bytes] = ()


async def wakeup(self: ConnectionHandler, request: commands.RequestWakeup) -> None:
    """As mitmproxy's, except for the answers of loops: they continue when more is available and the client has received
    what was sent so far."""
    if isinstance(request, _MorePieces):
        try:
            await self.drain_writers()
            request.pieces = await request.answering.take()
        except asyncio.CancelledError:
            request.answering.cancel()
            raise
    await _wakeup(self, request)


ConnectionHandler.wakeup = wakeup  # type: ignore[method-assign]


class Loops(layer.Layer):
    """Takes the place of a server's connection in mitmproxy's HTTP layer: requests in, answers of loops out. One
    instance serves all loops of a client's connection."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.server = Server(address=None)
        self.answers: dict[int, LoopAnswer] = {}

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, RequestEndOfMessage):
            if (answering := self.answers.get(event.stream_id)) is not None:
                yield _MorePieces(event.stream_id, answering)
        elif isinstance(event, RequestProtocolError):
            if (answering := self.answers.pop(event.stream_id, None)) is not None:
                answering.cancel()
        elif isinstance(event, events.Wakeup) and isinstance(event.command, _MorePieces):
            yield from self._continue(event.command)
        # the request's head and body are ignored: the loop has them from the flow

    def _continue(self, more: _MorePieces) -> layer.CommandGenerator[None]:
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
            yield _MorePieces(stream_id, answering)
            return
        del self.answers[stream_id]
        if answering.error is None:
            yield ReceiveHttp(ResponseEndOfMessage(stream_id))
        else:
            message = f"the answer broke off: {answering.error}"
            yield ReceiveHttp(ResponseProtocolError(stream_id, message, ErrorCode.GENERIC_SERVER_ERROR))


def _response(head: Head) -> http.Response:
    # HTTP/1 needs to know where a body ends; mitmproxy removes the header for HTTP/2
    ends = () if head.status in _WITHOUT_BODY else ((b"transfer-encoding", b"chunked"),)
    return new_response(head.status, [*head.headers, *ends])


def _loops_of(stream: HttpStream) -> Loops:
    """The loops of the stream's client connection, which replace the stream's server from now on."""
    layers = stream.context.layers
    parent = layers[layers.index(stream) - 1]
    assert isinstance(parent, HttpLayer)
    found = next((child for child in parent.connections.values() if isinstance(child, Loops)), None)
    if found is None:
        found = Loops(stream.context.fork())
        parent.connections[found.server] = found
    stream.context.server = found.server
    return found
