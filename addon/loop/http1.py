"""A client's connection over HTTP/1.1: one request after the other, each with its answer.

What goes wrong is raised as an exception of httpx2's.
"""

import asyncio
import re
import select
import ssl
from collections.abc import Sequence

import httpx2
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from addon.tools.httpcore_patches import ended_by_server

Headers = Sequence[tuple[bytes, bytes]]

READ, WRITE = 600.0, 60.0
"""Seconds for each piece of an answer, and for a server that takes nothing of a request."""

MAX_OVERHEAD = 100 * 1024
"""Bytes of an answer in a row that are no part of its body: its head, heads of status 1xx, trailers."""

_MAX_BUFFER = 256 * 1024
"""Bytes of a body beyond which no more is read until they are taken."""

_MAX_COPY = 64 * 1024
"""Bytes of a body up to which it is cheaper to send it in one piece with the head."""

_PIECE = 256 * 1024
"""Bytes of a larger body that are sent at a time. TLS encrypts all that it is given at once, while the event loop
waits, and tells only between two pieces that the server takes nothing."""

_TOKEN = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_WITH_BODY = ("POST", "PUT", "PATCH")


def head_of(method: str, target: bytes, headers: Headers, length: int) -> bytes:
    """The head of a request. Raises httpx2.LocalProtocolError for what would be read as another head."""
    lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or b"\n" in value or b"\r" in value or b"\0" in value:
            raise httpx2.LocalProtocolError(f"not a header: {name!r}")
        lines.append(b"%s: %s\r\n" % (name, value))
    lines.append(b"Content-Length: %d\r\n\r\n" % length if length or method in _WITH_BODY else b"\r\n")
    return b"".join(lines)


class Connection(asyncio.Protocol):
    """`status` is 0 until the head of the present answer is there. `has_received`: any bytes of that answer."""

    _transport: asyncio.Transport
    _tls: ssl.SSLObject | None
    status: int
    headers: list[tuple[bytes, bytes]]
    is_complete: bool
    has_received: bool

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._input = select.poll()
        self._parser: HttpResponseParser | None = None  # of the present answer
        self._waiter: asyncio.Future[None] | None = None
        self._error: httpx2.TransportError | None = None
        self._is_blocked = False  # the server takes nothing
        self._is_paused = False  # nothing is read
        self._begin()

    def _begin(self) -> None:
        self.status, self.headers = 0, []
        self.is_complete = self.has_received = False
        self._pieces: list[bytes] = []  # of the body
        self._size = 0
        self._overhead = 0
        self._keeps_alive = True
        self._is_sent = False
        self._ends_with_connection = False

    async def send(self, head: bytes, body: bytes) -> None:
        """Send a request. Returns once the head of its answer is there."""
        self._begin()
        self._parser = HttpResponseParser(self)
        if len(body) < _MAX_COPY:
            self._transport.write(head + body)
            self._is_sent = True
        else:
            self._transport.write(head)
            await self._send_body(memoryview(body))
        while not self.status:
            await self._wait()

    async def _send_body(self, body: memoryview) -> None:
        """Send a body, or the beginning of it if the answer comes first."""
        for start in range(0, len(body), _PIECE):
            self._transport.write(body[start : start + _PIECE])
            while self._is_blocked and not self.status:
                await self._wait()
            if self.status or self._error is not None:
                return
        self._is_sent = True

    async def chunk(self) -> bytes:
        """More of the body; b"" at its end."""
        while not self._pieces and not self.is_complete:
            await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._size = [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    @property
    def protocol(self) -> str | None:
        """What the server chose, if anything."""
        return self._tls.selected_alpn_protocol() if self._tls else None

    def can_be_kept(self) -> bool:
        """Whether request and answer are complete, and nothing is known to follow."""
        return (
            self.is_complete
            and self._is_sent
            and self._keeps_alive
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def can_be_reused(self) -> bool:
        """As `can_be_kept`, and nothing has arrived since: neither bytes nor the end of the connection."""
        return self.can_be_kept() and not self._input.poll(0)

    def close(self) -> None:
        self._parser = None  # they refer to each other
        self._transport.abort()

    async def _wait(self) -> None:
        """Wait for a change. Raises why the connection has ended, or that it took too long."""
        if self._error is not None:
            raise self._error
        waiter = self._waiter = self._loop.create_future()
        late = httpx2.WriteTimeout("") if self._is_blocked else httpx2.ReadTimeout("")
        timer = self._loop.call_later(WRITE if self._is_blocked else READ, _expire, waiter, late)
        try:
            await waiter
        finally:
            self._waiter = None
            timer.cancel()

    def _changed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- of asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._tls = transport.get_extra_info("ssl_object")
        self._input.register(transport.get_extra_info("socket"), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:  # nobody asked
            self.close()
            return
        self.has_received = True
        before = self._size
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(str(error.__context__ or error))
        self._overhead = 0 if self._size > before else self._overhead + len(data)
        if self._overhead > MAX_OVERHEAD:
            self._fail("the answer has too long a head")
        if self.is_complete:
            self._parser = None
        elif self._size > _MAX_BUFFER and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._changed()

    def _fail(self, why: str) -> None:
        """The answer cannot be read, or has something behind it."""
        self._keeps_alive = False
        if not self.is_complete:
            self._error = self._error or httpx2.RemoteProtocolError(why)
            self.close()

    def eof_received(self) -> None:
        if self.status and self._ends_with_connection and self._error is None and ended_by_server(self._tls):
            self.is_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_complete and self._error is None:
            ended = "in the middle of an answer" if self.has_received else "without an answer"
            why = f"the server closed the connection {ended}"
            self._error = httpx2.RemoteProtocolError(why) if exc is None else httpx2.ReadError(str(exc))
        self._parser = None
        self._changed()

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._changed()  # from now on it is waited for the answer

    # --- of httptools -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise HttpParserError("bytes behind the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # otherwise a trailer
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status == 101:
            raise HttpParserError("the server changed the protocol, unasked")
        if status < 200:
            self.headers.clear()
            return
        self._keeps_alive = self._parser.should_keep_alive()
        framing = {name.lower(): value.lower() for name, value in self.headers}
        coding = framing.get(b"transfer-encoding", b"identity")
        if coding not in (b"chunked", b"identity"):
            raise HttpParserError(f"its transfer coding {coding[:60]!r} is not known")
        self._ends_with_connection = coding != b"chunked" and b"content-length" not in framing
        self.status = status

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = self.status > 0


def _expire(waiter: asyncio.Future[None], late: httpx2.TimeoutException) -> None:
    if not waiter.done():
        waiter.set_exception(late)
