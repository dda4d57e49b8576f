"""What the connection of a proxy's client is doing, read from mitmproxy's layers: nothing is noted per request."""

import asyncio

from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Server
from mitmproxy.proxy.server import ConnectionHandler
from mitmproxy.proxy.tunnel import TunnelLayer

Head = tuple[HttpStream | None, int]
"""A request head: the tunnel (CONNECT) in which it comes, if any, and a number that grows with each request."""

FIRST_HEAD: Head = (None, 1)

_UNDECIDED = (modes.DestinationKnown, modes.HttpProxy, modes.HttpUpstreamProxy, TunnelLayer)
"""The last layer of a connection that has not said yet what it is for."""


def is_in_use(handler: ConnectionHandler) -> bool:
    """Whether the connection has a request, a WebSocket or a tunnel in progress, or an answer that is not written
    yet."""
    found = handler.transports.get(handler.client)
    if found is None or found.handler is None:
        return True  # it begins or ends at this moment
    if isinstance(found.writer, asyncio.StreamWriter) and found.writer.transport.get_write_buffer_size():
        return True
    return _is_in_use(handler.layer.context)


def _is_in_use(context: Context) -> bool:
    last = context.layers[-1]
    if isinstance(last, HttpLayer):
        return any(_is_busy(stream) for stream in last.streams.values())
    return not isinstance(last, (*_UNDECIDED, HttpStream))


def _is_busy(stream: HttpStream) -> bool:
    if _is_refused(stream):
        return False
    if _is_tunnel(stream):
        return _is_in_use(stream.context)
    return stream.flow.live or stream.child_layer is not None


def awaited_head(handler: ConnectionHandler) -> Head | None:
    """The request head that the connection has begun, or with which it has to begin; None while it is in use, or kept
    for a next request."""
    return _awaited_head(handler.layer.context, None)


def _awaited_head(context: Context, tunnel: HttpStream | None) -> Head | None:
    last = context.layers[-1]
    if not isinstance(last, HttpLayer):
        return (tunnel, 1) if isinstance(last, (*_UNDECIDED, HttpStream)) else None
    tunnels = []
    for stream in last.streams.values():
        if _is_refused(stream):
            continue
        if _is_tunnel(stream):
            tunnels.append(_awaited_head(stream.context, stream))
        elif _is_busy(stream):
            return None
    if tunnels:  # several only over HTTP/2
        return None if None in tunnels else tunnels[0]
    reading = last.connections.get(context.client)
    if isinstance(reading, Http1Server):
        return (tunnel, reading.stream_id) if reading.stream_id == 1 or reading.buf else None
    if isinstance(reading, Http2Server):
        number, frames = reading.h2_conn.highest_inbound_stream_id, reading.h2_conn.incoming_buffer
        return (tunnel, number or 1) if not number or frames._data or frames._headers_buffer else None
    return None


def _is_refused(stream: HttpStream) -> bool:
    """Whether the stream is a CONNECT that got an error. mitmproxy keeps it as long as the connection."""
    response = stream.flow.response
    return stream.flow.request.method == "CONNECT" and response is not None and not 200 <= response.status_code < 300


def _is_tunnel(stream: HttpStream) -> bool:
    return stream.child_layer is not None and stream.flow.request.method == "CONNECT"
