"""Sends the requests of a loop to Gemini, through pooled connections and a watcher, and says when to retry them.

The watcher can change each request and each answer. For mitmproxy an exchange is a flow, and its hooks see both. A loop
waits before a retry as long as the refusal demands (`Retry-After` and google.rpc.RetryInfo; the longer of the two
counts), else exponentially longer.
"""

import asyncio
import contextlib
import logging
import math
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple, Protocol

import httpx2

from addon.core.framing.documents import Malformed, decode, objects
from addon.core.framing.streams import BadEncoding, Decompress, TooLong, decompressor
from addon.core.security.secrets import RedactedStream, credentials, secrets_in
from addon.core.security.untrusted import cached_if_short
from addon.monitoring.own_secrets import own_secrets
from addon.tools.http_connections import OWNER, ends_with_connection

Headers = Sequence[tuple[bytes, bytes]]

# httpx2 logs whole URLs, which may hold a key. httpcore2 logs each step of each request, and mitmproxy enables that.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_TIMEOUT = httpx2.Timeout(connect=30, read=600, write=60, pool=60).as_dict()
"""`read`: for each piece of an answer. `write`: for each piece of a request."""

_PIECE = 256 * 1024
"""Larger bodies are sent in pieces of this many bytes. TLS encrypts a whole piece while the event loop waits, and the
time-out holds for each piece."""

MAX_PAUSE = 60.0
"""Seconds. If the upstream demands a longer pause, the client gets the refusal and decides itself."""

_GRACE = 0.1
"""Seconds to wait for the end of a body whose format has ended: the connection can be used again if it arrives."""

_FIRST_PAUSE = 0.2  # seconds, doubled after each attempt
_RETRIED = frozenset({429, 500, 502, 503, 504})  # statuses
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")
_SECONDS = re.compile(r"\d{1,9}(?:\.\d+)?")
_RETRY_INFO = "google.rpc.RetryInfo"


@dataclass(frozen=True, slots=True)
class Address:
    """URL and headers of a loop's requests, from the client's request."""

    method: str
    url: str
    headers: Headers


class Outgoing(NamedTuple):
    """A request as it is sent. `proxy`: URL of the upstream proxy, "" for none."""

    method: str
    url: str
    headers: Headers
    body: bytes
    proxy: str = ""


class Received(NamedTuple):
    """An answer as the loop receives it. `body`: None if it streams."""

    status: int
    headers: Headers
    body: bytes | None = None


class UpstreamExchange(Protocol):
    """One request and its answer, as changed by the watcher. Raises no errors of httpx2.

    `outgoing`: the request to send, or the answer if the watcher already has one. `receive_head` returns the head for
    the loop, or None if the watcher needs the whole body first; then `receive_body` returns the answer. `transform`
    returns each chunk of a streamed body for the loop; b"" marks the end. `close` ends the exchange."""

    @property
    def outgoing(self) -> Outgoing | Received: ...

    async def receive_head(self, status: int, headers: Headers) -> Received | None: ...

    async def receive_body(self, body: bytes) -> Received: ...

    def transform(self, chunk: bytes) -> bytes: ...

    async def close(self, error: str | None) -> None: ...


class Watcher(Protocol):
    """Sees every exchange, so that mitmproxy's addons can change it as if mitmproxy had sent the request."""

    async def begin(self, address: Address, body: bytes) -> UpstreamExchange: ...


class AnswerTooLong(httpx2.DecodingError):
    """The answer is longer than the limit."""


class Upstream:
    """`transport` returns the connections for a request, with the right proxies and certificates."""

    def __init__(self, transport: Callable[[Outgoing], httpx2.AsyncBaseTransport], watcher: Watcher) -> None:
        self.transport = transport
        self.watcher = watcher

    @contextlib.asynccontextmanager
    async def send(
        self,
        address: Address,
        body: bytes,
        max_bytes: int = sys.maxsize,
        abandoned: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator["UpstreamAnswer"]:
        """Send one request. Raises httpx2.RequestError if there is no answer; reading the body may raise it too, and
        does so after `max_bytes`. `abandoned` is called if the answer is no longer wanted, before the exchange is
        closed, because closing may take long."""
        exchange = await self.watcher.begin(address, body)
        error: str | None = "the loop ended before the answer did"
        try:
            outgoing = exchange.outgoing
            if isinstance(outgoing, Received):
                yield UpstreamAnswer(outgoing)
            else:
                transport = self.transport(outgoing)
                async with contextlib.aclosing(await transport.handle_async_request(_request(outgoing))) as response:
                    yield await _answer(response, outgoing, exchange, max_bytes)
            error = None
        except (asyncio.CancelledError, GeneratorExit):
            if abandoned is not None:
                await abandoned()
            raise
        except httpx2.RequestError as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            await exchange.close(error)


def _request(outgoing: Outgoing) -> httpx2.Request:
    method, url, headers, body, _ = outgoing
    extensions = {"timeout": _TIMEOUT, OWNER: credentials(url, headers)}
    if len(body) <= _PIECE:
        return httpx2.Request(method, _parsed(url), headers=list(headers), content=body, extensions=extensions)
    sized = [*headers, (b"Content-Length", b"%d" % len(body))]
    return httpx2.Request(method, _parsed(url), headers=sized, content=_Pieces(body), extensions=extensions)


class _Pieces(httpx2.AsyncByteStream):
    """A large body. It is read again if an HTTP/2 server reports that it did not process the request."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), _PIECE):
            yield self._body[start : start + _PIECE]


class UpstreamAnswer:
    """`ends_with_connection`: only the end of the connection ends the body, so it may have been cut off."""

    def __init__(
        self,
        received: Received,
        chunks: AsyncIterator[bytes] | None = None,
        exchange: UpstreamExchange | None = None,
        *,
        ends_with_connection: bool = False,
    ) -> None:
        self.ends_with_connection = ends_with_connection
        self.status = received.status
        self.headers = received.headers
        self.content_type = _content_type(received.headers)
        self._body = received.body
        self._chunks = chunks
        self._exchange = exchange

    async def chunks(self, is_complete: Callable[[], bool] = lambda: False) -> AsyncIterator[bytes]:
        """The body in chunks, decompressed. `is_complete`: whether the chunks so far hold the end of the answer, so
        that the rest of the body, such as its last chunk, need not arrive. Raises httpx2.RequestError."""
        if self._body is not None or self._chunks is None or self._exchange is None:
            yield self._body or b""
            return
        async for chunk in self._chunks:
            if transformed := self._exchange.transform(chunk):
                yield transformed
            if is_complete():
                if (rest := await _rest(self._chunks)) and (transformed := self._exchange.transform(rest)):
                    yield transformed
                break
        if transformed := self._exchange.transform(b""):
            yield transformed

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


async def _rest(chunks: AsyncIterator[bytes]) -> bytes:
    """What follows the end of an answer, if it arrives soon."""
    rest = b""
    with contextlib.suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(_GRACE):
            async for chunk in chunks:
                rest += chunk
    return rest


async def _answer(
    response: httpx2.Response, outgoing: Outgoing, exchange: UpstreamExchange, max_bytes: int
) -> UpstreamAnswer:
    if response.status_code < 200:
        raise httpx2.RemoteProtocolError("the server changed the protocol, unasked")
    received = await exchange.receive_head(response.status_code, response.headers.raw)
    secrets = own_secrets.combined_with(secrets_in(outgoing.url, outgoing.headers))
    chunks = _body_of(response, max_bytes, RedactedStream(secrets))
    if received is None:
        received = await exchange.receive_body(b"".join([chunk async for chunk in chunks]))
    return UpstreamAnswer(received, chunks, exchange, ends_with_connection=ends_with_connection(response))


def _body_of(response: httpx2.Response, max_bytes: int, redacted: RedactedStream) -> AsyncIterator[bytes]:
    """The decompressed body without the request's credentials: an error may repeat the key, and is shown and stored.
    httpx2 supports fewer encodings, and passes unknown ones on. Raises httpx2.DecodingError."""
    values = [value for name, value in response.headers.raw if name.lower() == b"content-encoding"]
    encoding = b", ".join(values).decode("latin-1")
    decompress = decompressor(encoding, max_bytes)
    if decompress is None:
        raise httpx2.DecodingError(f"its content encoding {encoding[:60]!r} is not known; identity was asked for")
    return _decompressed(response, decompress, redacted)


async def _decompressed(
    response: httpx2.Response, decompress: Decompress, redacted: RedactedStream
) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            if chunk and (plain := decompress(chunk)) and (data := redacted.feed(plain)):
                yield data
        if data := redacted.feed(decompress(b"")) + redacted.flush():
            yield data
    except TooLong as error:
        raise AnswerTooLong(f"the model's answer is too long: {error} (graft_max_answer)") from None
    except BadEncoding as error:
        raise httpx2.DecodingError(str(error)) from None


@cached_if_short(256)
def _parsed(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def _content_type(headers: Headers) -> str:
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.decode("latin-1").partition(";")[0].strip().lower()
    return ""


def backoff(attempt: int) -> float:
    """The seconds to wait after this attempt (the first is 1), if the upstream does not demand a pause."""
    return _FIRST_PAUSE * 2.0 ** (attempt - 1)


def pause_after(status: int, headers: Headers, body: bytes, attempt: int, *, now: float) -> float | None:
    """The seconds to wait after a refusal; None if a retry is useless, or possible only after more than MAX_PAUSE.
    `now`: seconds since the epoch."""
    if status not in _RETRIED:
        return None
    requested = max((*_retry_after(headers, now), *_retry_info(body)), default=None)
    pause = backoff(attempt) if requested is None else max(requested, 0.0)
    return pause if pause <= MAX_PAUSE else None


def _retry_after(headers: Headers, now: float) -> Iterable[float]:
    for name, value in headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if _SECONDS.fullmatch(text):
            yield float(text)
            continue
        try:
            yield parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):
            continue


def _retry_info(body: bytes) -> Iterable[float]:
    """The retryDelay values of a Google error, or of a list of Google errors."""
    if _RETRY_INFO.encode() not in body:
        return
    try:
        documents = list(objects(decode(body)))
    except Malformed:
        return
    for document in documents:
        error = document.get("error")
        details = error.get("details") if isinstance(error, dict) else None
        for detail in objects(details):
            delay = detail.get("retryDelay")
            if str(detail.get("@type")).endswith(_RETRY_INFO) and isinstance(delay, str):
                match = _DURATION.fullmatch(delay)
                if match and math.isfinite(seconds := float(match[1])):
                    yield seconds
