"""Connections that serve one owner each: no request may receive bytes that a server sent for another credential.

If a server sends more bytes than belong to its answer, they can become the beginning of the next answer on that
connection. So each owner has its own transport and connections.

An answer without a length ends with its connection. Anyone on the path can cut a TCP connection, so such an answer
counts as complete only if the server ended it within TLS.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Hashable

import httpx2

OWNER = "toolgraft_owner"
"""The request extension that names the owner of the connections to use: any hashable value."""

IDLE = 4.0
"""Seconds for which idle connections are kept. Common servers close theirs after five."""

LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=IDLE)
"""For the connections of one owner."""

MAX_IDLE_OWNERS = 100


class _Owned:
    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.requests = 0  # in flight
        self.idle_since = 0.0


class OwnedConnections(httpx2.AsyncBaseTransport):
    """Sends each request through the transport of its OWNER, which `make` creates. Idle transports are closed after a
    while, and sooner, the longest idle first, if they are many."""

    def __init__(self, make: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._make = make
        self._busy: dict[Hashable, _Owned] = {}
        self._idle: dict[Hashable, _Owned] = {}  # the longest idle first

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        owner = request.extensions.get(OWNER)
        owned = self._busy.get(owner) or self._idle.pop(owner, None) or _Owned(self._make())
        self._busy[owner] = owned
        owned.requests += 1
        try:
            await self._close_idle()
            response = await owned.transport.handle_async_request(request)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
        except BaseException:
            self._release(owner, owned)
            raise
        response.stream = _Body(response, response.stream, lambda: self._release(owner, owned))
        return response

    def _release(self, owner: Hashable, owned: _Owned) -> None:
        owned.requests -= 1
        if not owned.requests:
            owned.idle_since = asyncio.get_running_loop().time()
            self._idle[owner] = self._busy.pop(owner)

    async def _close_idle(self) -> None:
        begin = asyncio.get_running_loop().time() - IDLE
        while self._idle:
            owner, oldest = next(iter(self._idle.items()))
            if oldest.idle_since >= begin and len(self._idle) <= MAX_IDLE_OWNERS:
                break
            del self._idle[owner]
            await oldest.transport.aclose()

    async def aclose(self) -> None:
        owned = [*self._busy.values(), *self._idle.values()]
        self._idle.clear()
        for one in owned:
            await one.transport.aclose()


class _Body(httpx2.AsyncByteStream):
    """The body of an answer. `released` is called once it is closed."""

    def __init__(self, response: httpx2.Response, stream: httpx2.AsyncByteStream, released: Callable[[], None]) -> None:
        self._stream = stream
        self._released: Callable[[], None] | None = released
        network = response.extensions.get("network_stream")
        self._tls = network.get_extra_info("ssl_object") if network and ends_with_connection(response) else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk
        if self._tls is not None and _is_cut(self._tls):
            raise httpx2.RemoteProtocolError("the server closed the connection in the middle of an answer")

    async def aclose(self) -> None:
        released, self._released = self._released, None
        if released is not None:
            try:
                await self._stream.aclose()
            finally:
                released()


def ends_with_connection(response: httpx2.Response) -> bool:
    """Whether neither a length nor a last chunk marks the end of the body."""
    headers = response.headers
    return (
        response.http_version.startswith("HTTP/1")
        and "content-length" not in headers
        and not headers.get("transfer-encoding", "").rstrip().lower().endswith("chunked")
    )


def _is_cut(tls: ssl.SSLObject) -> bool:
    """Whether the connection ended without TLS's closing message from the server."""
    try:
        tls.read(1)
    except (ssl.SSLZeroReturnError, ssl.SSLWantReadError):  # ended by the server; not ended: no body may follow
        return False
    except ssl.SSLError:
        return True
    return False
