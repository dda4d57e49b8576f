"""Where requests really go, once every addon has had its say: to a loop, or elsewhere than their URL says.

Whatever a hook did to the flow would be seen by the addons behind it, and what they did would pass by what is sent. So
nothing is done to the flow: at the point where mitmproxy has run the hooks of a request and would connect to its host,
`way` is asked. A loop is for mitmproxy one more connection of its HTTP layer, which takes the request and gives an
answer; there is no socket, and no address, that any hook could see. A request that goes elsewhere is sent as a copy.

A connection to a server serves one credential alone, as those of loops do (`addon.tools.connections`).

For that two methods of mitmproxy's are replaced below. A mitmproxy that does not have them fails when this module is
imported, so that the proxy does not start.
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
from addon.hooks.headers import new_response
from addon.hooks.perflow import PerFlow
from addon.loop.runner import Head
from addon.loop.server import LoopAnswer

logger = logging.getLogger("toolgraft")

Way = Callable[[http.HTTPFlow], LoopAnswer | http.Request | None]
"""Asked once, after the hooks of a request: the loop that answers it, what is sent in its place, or None where it is
sent as it stands."""

way = PerFlow[Way]("way_onward")

_WITHOUT_BODY = (204, 304)

_MISTAKE = "a mistake in the proxy itself; its log says which"


def check(owner: type, *names: str) -> None:
    """Raises RuntimeError for a mitmproxy that toolgraft does not fit."""
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
    """As mitmproxy's, but for flows that have another way."""
    found = way.pop(self.flow)
    try:
        to = found(self.flow) if found is not None else None
    except Exception:
        logger.exception("a request was not sent on")
        failure = ResponseProtocolError(self.stream_id, _MISTAKE, ErrorCode.GENERIC_SERVER_ERROR)
        yield from self.handle_protocol_error(failure)
        return False
    if to is None:
        return (yield from _kept_apart(self.flow, _make_server_connection(self)))
    if isinstance(to, http.Request):
        return (yield from _kept_apart(self.flow, _send_instead(self, to)))
    _loops_of(self).answers[self.stream_id] = to
    return True


HttpStream.make_server_connection = make_server_connection  # type: ignore[method-assign]


_owners: WeakKeyDictionary[Connection, tuple[bytes, ...]] = WeakKeyDictionary()
"""With what credentials a connection was used."""


def _kept_apart(
    flow: http.HTTPFlow, connecting: Generator[commands.Command, Any, bool]
) -> Generator[commands.Command, Any, bool]:
    """Connecting, but to a connection that was used with other credentials: what a server sends on it too late, or too
    much, would be somebody else's answer. A client may be a gateway, on whose connection many people ask."""
    owner = credentials(flow.request.path, flow.request.headers.fields)
    command = next(connecting)
    while True:
        if isinstance(command, GetHttpConnection):
            _match_owner(command, owner)
        try:
            command = connecting.send((yield command))
        except StopIteration as end:
            if end.value:
                _owners[flow.server_conn] = owner
            return bool(end.value)


def _match_owner(command: GetHttpConnection, owner: tuple[bytes, ...]) -> None:
    matches = command.connection_spec_matches

    def its_own(connection: Connection) -> bool:
        return matches(connection) and _owners.get(connection, owner) == owner

    command.connection_spec_matches = its_own  # type: ignore[method-assign]


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
    true, flow.request = flow.request, request
    # mitmproxy goes on without a pause, and sends the head, or the whole, of what the flow holds now
    asyncio.get_running_loop().call_soon(_put_back, flow, request, true)
    return True


def _put_back(flow: http.HTTPFlow, sent: http.Request, true: http.Request) -> None:
    if flow.request is sent:
        flow.request = true


class _Next(commands.RequestWakeup):
    """Asks for an event when the answer goes on."""

    def __init__(self, stream_id: int, answering: LoopAnswer) -> None:
        super().__init__(0.0)
        self.stream_id = stream_id
        self.answering = answering
        self.pieces: Sequence[Head | bytes] = ()


async def wakeup(self: ConnectionHandler, request: commands.RequestWakeup) -> None:
    """As mitmproxy's, but for the answers of loops: those go on when there is more of them, and when the client has
    taken what it was sent."""
    if isinstance(request, _Next):
        try:
            await self.drain_writers()
            request.pieces = await request.answering.take()
        except asyncio.CancelledError:
            request.answering.cancel()
            raise
    await _wakeup(self, request)


ConnectionHandler.wakeup = wakeup  # type: ignore[method-assign]


class Loops(layer.Layer):
    """Stands in mitmproxy's HTTP layer where the connection to a server would: requests come in, and the answers of
    loops go out. One serves all the loops of a client's connection."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.server = Server(address=None)
        self.answers: dict[int, LoopAnswer] = {}

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, RequestEndOfMessage):
            if (answering := self.answers.get(event.stream_id)) is not None:
                yield _Next(event.stream_id, answering)
        elif isinstance(event, RequestProtocolError):
            if (answering := self.answers.pop(event.stream_id, None)) is not None:
                answering.cancel()
        elif isinstance(event, events.Wakeup) and isinstance(event.command, _Next):
            yield from self._go_on(event.command)
        # the request's head and body are the flow's: the loop has them already

    def _go_on(self, came: _Next) -> layer.CommandGenerator[None]:
        stream_id, answering = came.stream_id, came.answering
        for piece in came.pieces:
            if self.answers.get(stream_id) is not answering:
                return  # the client hung up, or an addon killed the flow
            if isinstance(piece, Head):
                yield ReceiveHttp(ResponseHeaders(stream_id, _response(piece)))
            elif piece:
                yield ReceiveHttp(ResponseData(stream_id, piece))
        if self.answers.get(stream_id) is not answering:
            return
        if not answering.over:
            yield _Next(stream_id, answering)
            return
        del self.answers[stream_id]
        if answering.error is None:
            yield ReceiveHttp(ResponseEndOfMessage(stream_id))
        else:
            message = f"the answer broke off: {answering.error}"
            yield ReceiveHttp(ResponseProtocolError(stream_id, message, ErrorCode.GENERIC_SERVER_ERROR))


def _response(head: Head) -> http.Response:
    # HTTP/1 needs to know where the body ends, if there may be one; for HTTP/2 mitmproxy leaves the header out
    ends = () if head.status in _WITHOUT_BODY else ((b"transfer-encoding", b"chunked"),)
    return new_response(head.status, [*head.headers, *ends])


def _loops_of(stream: HttpStream) -> Loops:
    """Those of the stream's connection, which from now on stand for its server."""
    layers = stream.context.layers
    parent = layers[layers.index(stream) - 1]
    assert isinstance(parent, HttpLayer)
    found = next((child for child in parent.connections.values() if isinstance(child, Loops)), None)
    if found is None:
        found = Loops(stream.context.fork())
        parent.connections[found.server] = found
    stream.context.server = found.server
    return found
