"""Requests of a loop on their way to Gemini: one pooled client, and someone who is told of each exchange."""

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx2

Headers = Sequence[tuple[bytes, bytes]]

# It logs whole URLs, and a URL may hold a key; and httpcore2 each step of each request, which mitmproxy asks for.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_TIMEOUT = httpx2.Timeout(connect=30, read=600, write=60, pool=60)


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go. `url` is where the client meant them to go, `to` where they are sent instead, if anywhere."""

    method: str
    url: str
    headers: Headers
    to: str | None = None


class Exchange(Protocol):
    """One exchange, being watched. Nothing here may raise or wait. `replayed` is an answer that is already there."""

    @property
    def replayed(self) -> tuple[int, Headers, bytes] | None: ...

    async def answered(self, status: int, headers: Headers) -> None: ...

    def received(self, chunk: bytes) -> None: ...

    async def ended(self, error: str | None) -> None: ...


class Watcher(Protocol):
    """Is told of every exchange: mitmproxy shows and records them as if it had made them."""

    async def sent(self, address: Address, body: bytes) -> Exchange: ...


class Upstream:
    """`client` is the caller's: it knows the proxies and certificates to use."""

    def __init__(self, client: httpx2.AsyncClient, watcher: Watcher) -> None:
        self.client = client
        self.watcher = watcher

    @contextlib.asynccontextmanager
    async def send(self, address: Address, body: bytes) -> AsyncIterator["Answer"]:
        """One request. Raises httpx2.RequestError where there is no answer; the body may break off with one."""
        watched = await self.watcher.sent(address, body)
        error: str | None = "the loop ended before the answer did"
        try:
            response = await self._response(address, body, watched)
            try:
                yield Answer(response, watched)
                error = None
            finally:
                await response.aclose()
        except httpx2.RequestError as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            await watched.ended(error)

    async def _response(self, address: Address, body: bytes, watched: Exchange) -> httpx2.Response:
        if (replayed := watched.replayed) is not None:
            status, headers, content = replayed
            return httpx2.Response(status, headers=list(headers), content=content)
        request = self.client.build_request(
            address.method, address.to or address.url, headers=list(address.headers), content=body, timeout=_TIMEOUT
        )
        response = await self.client.send(request, stream=True)
        await watched.answered(response.status_code, response.headers.raw)
        return response


class Answer:
    def __init__(self, response: httpx2.Response, watched: Exchange) -> None:
        self.status = response.status_code
        self.headers: Headers = response.headers.raw
        self.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._response = response
        self._watched = watched

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, decompressed."""
        async for chunk in self._response.aiter_bytes():
            self._watched.received(chunk)
            yield chunk

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])
