"""Limits the heads of HTTP/1.1 requests and answers at the proxy's ports (`graft_max_headers`): mitmproxy collects a
head for as long as it arrives. HTTP/2 has a limit of its own there, 64 KiB.

For this, two methods of mitmproxy are replaced below.
"""

from collections.abc import Generator
from typing import Any

from mitmproxy import ctx
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import ErrorCode, ResponseProtocolError
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.hooks.destinations import check

_SMALL = 1024
"""Bytes that are within every limit."""

check(Http1Client, "read_headers")
check(Http1Server, "read_headers")
_read_request = Http1Server.read_headers
_read_response = Http1Client.read_headers

Commands = Generator[commands.Command, Any]


def read_request(self: Http1Server, event: events.ConnectionEvent) -> Commands:
    """As mitmproxy's, but a head that is too long gets a 431."""
    yield from _read_request(self, event)
    if self.request is None and _is_too_long(self, event):
        body = encode(replies.error(431, "INVALID_ARGUMENT", _too_long("request")))
        head = f"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: {len(body)}\r\n"
        yield commands.SendData(self.conn, f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        yield commands.CloseConnection(self.conn)
        self.state = self.done


def read_response(self: Http1Client, event: events.ConnectionEvent) -> Commands:
    """As mitmproxy's, but a head that is too long ends the connection."""
    yield from _read_response(self, event)
    if self.response is None and self.stream_id is not None and _is_too_long(self, event):
        yield commands.CloseConnection(self.conn)
        yield ReceiveHttp(
            ResponseProtocolError(self.stream_id, _too_long("answer"), ErrorCode.GENERIC_SERVER_ERROR),
        )
        self.state = self.done


def _is_too_long(reading: Http1Client | Http1Server, event: events.ConnectionEvent) -> bool:
    return isinstance(event, events.DataReceived) and len(reading.buf) > _SMALL and len(reading.buf) > _limit()


def _limit() -> int:
    return int(ctx.options.graft_max_headers)


def _too_long(what: str) -> str:
    return f"the headers of the {what} have more than {_limit()} bytes (graft_max_headers)"


Http1Server.read_headers = read_request  # type: ignore[method-assign]
Http1Client.read_headers = read_response  # type: ignore[method-assign]
