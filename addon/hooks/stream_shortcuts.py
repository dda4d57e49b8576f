"""A short way through mitmproxy's layers for the pieces of a streamed answer.

mitmproxy hands each piece through some fifteen generators. Here the answer's reader gives it to the stream's stage,
and sends the client what comes out. All that is not a plain piece takes mitmproxy's way."""

from collections.abc import Generator, Iterable
from typing import Any

from mitmproxy.proxy.commands import Command, SendData
from mitmproxy.proxy.events import DataReceived, Event
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Connection, Http1Server

from addon.hooks.interim import ChunkedBody
from addon.hooks.shortcuts import Method, Shortcut, framed
from addon.hooks.streams import STREAMING, ends_next

Commands = Generator[Command, Any]


def passes_pieces(handle_any: Method) -> Method:
    """Takes the short way for whole chunks."""

    def handle(self: Http1Connection, event: Event) -> Commands:
        if type(event) is DataReceived and type(self) is Http1Client and not self.buf and self.state == self.read_body:
            reader: Any = self.body_reader
            if type(reader) is ChunkedBody and (piece := reader.whole_chunks(event.data)):
                return _pass(self, piece)
        return handle_any(self, event)  # type: ignore[no-any-return]

    return handle


def _pass(client: Http1Client, piece: bytes) -> Commands:
    assert client.stream_id is not None
    stream, server = _way(client, client.stream_id)
    if stream is None or server is None:
        yield ReceiveHttp(ResponseData(client.stream_id, piece))
        return
    assert stream.flow.response is not None
    stage = stream.flow.response.stream
    chunks: bytes | Iterable[bytes] = stage(piece) if callable(stage) else piece
    for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
        if stream.context.options.store_streamed_bodies:
            stream.response_body_buf += chunk
        if data := framed(server, chunk):
            yield SendData(server.conn, data)
    if ends_next(stream):
        yield ReceiveHttp(ResponseData(client.stream_id, b""))


def _way(client: Http1Client, stream_id: int) -> tuple[HttpStream, Http1Server] | tuple[None, None]:
    """The stream that an answer belongs to, and the connection of its client, if pieces of the answer only pass through
    both."""
    for layer in reversed(client.context.layers):
        if isinstance(layer, HttpLayer):
            break
    else:
        return None, None
    stream, server = layer.streams.get(stream_id), layer.connections.get(layer.context.client)
    if (
        stream is None
        or type(server) is not Http1Server
        or stream.stream_id != server.stream_id
        or server.response is None
        or stream._paused is not None
        or server._paused is not None
        or stream.debug is not None
        or getattr(stream.server_state, "__func__", None) not in STREAMING
    ):
        return None, None
    return stream, server


_HTTP = "mitmproxy.proxy.layers.http:"
_HTTP1 = "mitmproxy.proxy.layers.http._http1:"
_LAYER = "mitmproxy.proxy.layer:"

STREAM_SHORTCUTS = (
    Shortcut(
        passes_pieces,
        "efc1e97941f9a88f",
        _HTTP1 + "Http1Connection._handle_event",
        *(_HTTP1 + name for name in ("Http1Connection.read_body", "Http1Server.send")),
        *(_HTTP + name for name in ("HttpLayer.event_to_child", "HttpStream._handle_event")),
        _HTTP + "HttpStream.state_stream_response_body",
        _LAYER + "Layer.handle_event",
    ),
)
