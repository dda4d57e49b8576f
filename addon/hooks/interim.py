"""Drops two parts of HTTP/1.1 that mitmproxy does not support: 1xx heads before an answer, and trailers after a chunked
body. mitmproxy takes the former for the answer and fails at the latter, so that its clients wait forever. A proxy may
drop both (RFC 9110, 6.5.1 and 15.2).

Chunks that arrive together are passed on together: mitmproxy would handle, and send, each of them alone.

For this, one method and one function of mitmproxy are replaced below.
"""

import re
from collections.abc import Callable, Generator
from typing import Any

import h11
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http import _http1
from mitmproxy.proxy.layers.http._http1 import Http1Client

from addon.hooks.destinations import check

_INTERIM = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d\b")  # 101 is an answer
_CHUNK_END = b"\r\n"

check(Http1Client, "read_headers")
_read_headers = Http1Client.read_headers
_make_body_reader = _http1.make_body_reader


def read_headers(self: Http1Client, event: events.ConnectionEvent) -> Generator[commands.Command, Any]:
    """As mitmproxy's, but skips 1xx heads."""
    if isinstance(event, events.DataReceived) and self.request:
        while _INTERIM.match(bytes(self.buf)):
            if self.buf.maybe_extract_lines() is None or not self.buf:
                return
    yield from _read_headers(self, event)


class ChunkedBody:
    """A reader of a chunked body. The chunks that have arrived are one piece of data; trailers are dropped."""

    def __init__(self, reader: Any) -> None:
        self.read_eof = reader.read_eof
        self._read = reader
        self._next: h11.EndOfMessage | h11.ProtocolError | None = None  # follows the data that was just returned

    def __call__(self, buffer: Any) -> Any:
        event, self._next = self._next or self._one(buffer), None
        if isinstance(event, h11.Data) and len(buffer) > len(_CHUNK_END):
            pieces = [event.data]
            while isinstance(following := self._one(buffer), h11.Data):
                pieces.append(following.data)
            event, self._next = h11.Data(b"".join(pieces)), following
        if isinstance(event, h11.ProtocolError):
            raise event
        return event

    def _one(self, buffer: Any) -> Any:
        try:
            event = self._read(buffer)
        except h11.ProtocolError as error:
            return error
        return h11.EndOfMessage() if isinstance(event, h11.EndOfMessage) else event


def make_body_reader(expected_size: int | None) -> Callable[[Any], Any]:
    """As mitmproxy's, but for chunked bodies."""
    reader = _make_body_reader(expected_size)
    return ChunkedBody(reader) if expected_size is None else reader


Http1Client.read_headers = read_headers  # type: ignore[method-assign]
_http1.make_body_reader = make_body_reader  # type: ignore[assignment]
