"""Requests of a loop on their way to Gemini: pooled clients, and someone by whom each exchange goes.

What is sent, and what the loop gets for it, is what the watcher makes of it: for mitmproxy an exchange is a flow, whose
hooks may change either.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import httpx2

from addon.core.credentials import credentials, secrets_in
from addon.core.encoding import BadEncoding, Decompress, TooLong, decompressor
from addon.core.redaction import RedactedStream
from addon.loop.kept_connections import Attempt
from addon.own_secrets import own_secrets
from addon.tools.connections import OWNER

Headers = Sequence[tuple[bytes, bytes]]

# It logs whole URLs, and a URL may hold a key; and httpcore2 each step of each request, which mitmproxy asks for.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_TIMEOUT = httpx2.Timeout(connect=30, read=600, write=60, pool=60)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a loop's requests go, by the client's request."""

    method: str
    url: str
    headers: Headers


class Outgoing(NamedTuple):
    """A request as it is sent. `proxy`: the URL of the upstream proxy that it goes through, "" for none."""

    method: str
    url: str
    headers: Headers
    body: bytes
    proxy: str = ""


class Received(NamedTuple):
    """An answer as the loop gets it. `body`: None where it streams."""

    status: int
    headers: Headers
    body: bytes | None = None


class UpstreamExchange(Protocol):
    """One exchange, as its watcher wants it. Nothing here raises httpx2's errors.

    First `outgoing` is what is to be sent, or the answer where it is there already. Then `answered` is given the head
    of the answer, and gives what the loop gets of it, or None where the whole answer is wanted first: then `whole`
    gives that. Of an answer that streams `passes` gives each piece as it is to be; b"" is its end."""

    @property
    def outgoing(self) -> Outgoing | Received: ...

    async def receive_head(self, status: int, headers: Headers) -> Received | None: ...

    async def receive_body(self, body: bytes) -> Received: ...

    def transform(self, chunk: bytes) -> bytes: ...

    async def close(self, error: str | None) -> None: ...


class Watcher(Protocol):
    """Every exchange goes by it: mitmproxy's addons see and change it as if mitmproxy had made it."""

    async def begin(self, address: Address, body: bytes) -> UpstreamExchange: ...


class AnswerTooLong(httpx2.DecodingError):
    """There is more of an answer than is taken."""


class Upstream:
    """`client` gives the client for a request: it knows the proxies and certificates to use."""

    def __init__(self, client: Callable[[Outgoing], httpx2.AsyncClient], watcher: Watcher) -> None:
        self.client = client
        self.watcher = watcher

    @contextlib.asynccontextmanager
    async def send(
        self,
        address: Address,
        body: bytes,
        most: int = sys.maxsize,
        abandoned: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator["UpstreamAnswer"]:
        """One request. Raises httpx2.RequestError where there is no answer; the body may break off with one, and does
        behind `most` bytes. `abandoned` is called where nobody wants the answer any more, before the watcher is told:
        that may take long."""
        exchange = await self.watcher.begin(address, body)
        error: str | None = "the loop ended before the answer did"
        try:
            outgoing = exchange.outgoing
            if isinstance(outgoing, Received):
                yield UpstreamAnswer(outgoing)
            else:
                async with self._answered(outgoing, exchange, most) as answer:
                    yield answer
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

    @contextlib.asynccontextmanager
    async def _answered(
        self, outgoing: Outgoing, exchange: UpstreamExchange, most: int
    ) -> AsyncIterator["UpstreamAnswer"]:
        response = await self._response(outgoing)
        try:
            received = await exchange.receive_head(response.status_code, response.headers.raw)
            secrets = own_secrets.combined_with(secrets_in(outgoing.url, outgoing.headers))
            plain = _redacted(_plain(response, most), RedactedStream(secrets))
            if received is None:
                received = await exchange.receive_body(b"".join([chunk async for chunk in plain]))
            yield UpstreamAnswer(received, plain, exchange)
        finally:
            await response.aclose()

    async def _response(self, outgoing: Outgoing) -> httpx2.Response:
        client = self.client(outgoing)
        owner = credentials(outgoing.url, outgoing.headers)
        for again in (True, False):
            attempt = Attempt()
            request = client.build_request(
                outgoing.method,
                outgoing.url,
                headers=list(outgoing.headers),
                content=outgoing.body,
                timeout=_TIMEOUT,
                extensions={**attempt.extensions, OWNER: owner},
            )
            try:
                with attempt:
                    return await client.send(request, stream=True)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                if not (again and attempt.hit_closing_connection):
                    raise
        raise AssertionError("the second time it is raised")


class UpstreamAnswer:
    def __init__(
        self, received: Received, plain: AsyncIterator[bytes] | None = None, exchange: UpstreamExchange | None = None
    ) -> None:
        self.status = received.status
        self.headers = received.headers
        self.content_type = _content_type(received.headers)
        self._whole = received.body
        self._plain = plain
        self._exchange = exchange

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, decompressed. Raises httpx2.RequestError."""
        if self._whole is not None or self._plain is None or self._exchange is None:
            yield self._whole or b""
            return
        async for chunk in self._plain:
            if passed := self._exchange.transform(chunk):
                yield passed
        if passed := self._exchange.transform(b""):
            yield passed

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


def _plain(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """The body's bytes without their compression. httpx2 knows fewer encodings, and passes on what it does not know.
    Raises httpx2.DecodingError, for an encoding that is not known at once."""
    encoding = response.headers.get("content-encoding", "")
    decompress = decompressor(encoding, most)
    if decompress is None:
        raise httpx2.DecodingError(f"its content encoding {encoding[:60]!r} is not known; identity was asked for")
    return _decompressed(response, decompress)


async def _decompressed(response: httpx2.Response, decompress: Decompress) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            if chunk and (plain := decompress(chunk)):
                yield plain
        if plain := decompress(b""):
            yield plain
    except TooLong as error:
        raise AnswerTooLong(f"the model's answer is too long: {error} (graft_max_answer)") from None
    except BadEncoding as error:
        raise httpx2.DecodingError(str(error)) from None


async def _redacted(plain: AsyncIterator[bytes], stream: RedactedStream) -> AsyncIterator[bytes]:
    """The body without what it was asked with: an error may repeat the key, and is shown and stored."""
    async for chunk in plain:
        if data := stream.feed(chunk):
            yield data
    if data := stream.flush():
        yield data


def _content_type(headers: Headers) -> str:
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.decode("latin-1").partition(";")[0].strip().lower()
    return ""
