"""Sends requests straight to their server over HTTP/1.1, at a fraction of what `httpx2` costs.

No request may receive bytes of another request's answer: a connection is kept for its owner alone, and only if nothing
followed its last answer. Upstream proxies and servers that choose HTTP/2 are left to `httpx2`, whose exceptions are
raised here too.
"""

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Hashable
from typing import NamedTuple

import httpx2

from addon.core.short_cache import cached_if_short
from addon.loop.http1 import Connection, Headers, head_of

CONNECT, WAIT = 30.0, 60.0
"""Seconds for a connection, and for a free place."""

_NEXT_ADDRESS = 5.0
"""Seconds after which another address of a server is tried."""

MAX_REQUESTS = 1000
"""Requests at a time; others wait."""

MAX_IDLE, IDLE = 100, 5.0
"""The number of connections that are kept for further requests, and for how many seconds."""

_MAX_HTTP2 = 1024
"""The number of servers that are known to choose HTTP/2. It is bounded because clients choose the regions in host
names."""


class Server(NamedTuple):
    host: str
    port: int
    is_secure: bool


type Key = tuple[Server, Hashable]


class Reply(AsyncIterator[bytes]):
    """The answer to a request: its head, and its body as it arrives. Reading it raises httpx2.RequestError."""

    is_http1 = True

    def __init__(self, pool: "Direct", key: Key, connection: Connection) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self._pool = pool
        self._key = key
        self._connection: Connection | None = connection

    def chunks(self) -> "Reply":
        return self

    async def __anext__(self) -> bytes:
        if self._connection is None or not (chunk := await self._connection.chunk()):
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(self._key, connection)


class Direct:
    """The connections with the same settings. `context` verifies servers; `http2`: they may choose HTTP/2."""

    def __init__(self, context: ssl.SSLContext, *, http2: bool) -> None:
        context.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
        self._context = context
        self._speak_http2: set[Server] = set()
        self._idle: dict[Connection, tuple[Key, asyncio.TimerHandle]] = {}  # the longest idle first
        self._places = asyncio.Semaphore(MAX_REQUESTS)
        self._is_closed = False

    async def send(self, method: str, url: str, headers: Headers, body: bytes, owner: Hashable) -> Reply | None:
        """Send a request. Returns with the head of its answer; None if the server chooses HTTP/2, before anything is
        sent. A request that meets the end of a kept connection is sent once more. Raises httpx2.RequestError."""
        server, target, netloc = _parsed(url)
        if server in self._speak_http2:
            return None
        if not any(name.lower() == b"host" for name, _ in headers):
            headers = [(b"Host", netloc), *headers]
        head, key = head_of(method, target, headers, len(body)), (server, owner)
        await self._take_place()
        connection: Connection | None = None
        try:
            connection = self._take(key)
            if connection is None or not await _sent(connection, head, body, was_kept=True):
                connection = await self._connect(server)
                if connection is not None:
                    await _sent(connection, head, body, was_kept=False)
        except BaseException:
            self._places.release()
            raise
        if connection is None:
            self._places.release()
            return None
        return Reply(self, key, connection)

    async def aclose(self) -> None:
        """Close the idle connections now, and the others as soon as their answers were taken."""
        self._is_closed = True
        for connection in list(self._idle):
            self._close_idle(connection)
        await asyncio.sleep(0)  # they are closed in the event loop's next turn

    def release(self, key: Key, connection: Connection) -> None:
        """The answer was taken, or is not wanted any longer."""
        self._places.release()
        if self._is_closed or not connection.can_be_kept():
            connection.close()
            return
        self._idle[connection] = key, asyncio.get_running_loop().call_later(IDLE, self._close_idle, connection)
        if len(self._idle) > MAX_IDLE:
            self._close_idle(next(iter(self._idle)))

    def _close_idle(self, connection: Connection) -> None:
        _, expiry = self._idle.pop(connection)
        expiry.cancel()
        connection.close()

    async def _take_place(self) -> None:
        try:
            async with asyncio.timeout(WAIT) if self._places.locked() else contextlib.nullcontext():
                await self._places.acquire()
        except TimeoutError:
            raise httpx2.PoolTimeout("") from None

    def _take(self, key: Key) -> Connection | None:
        """An idle connection; those that have ended meanwhile are closed."""
        for connection in [one for one, (owned, _) in self._idle.items() if owned == key]:
            if connection.can_be_reused():
                _, expiry = self._idle.pop(connection)
                expiry.cancel()
                return connection
            self._close_idle(connection)
        return None

    async def _connect(self, server: Server) -> Connection | None:
        """A new connection; None if the server chooses HTTP/2."""
        try:
            async with asyncio.timeout(CONNECT):
                connection = await self._connected(server)
        except TimeoutError:
            raise httpx2.ConnectTimeout("") from None
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error
        if connection.protocol != "h2":
            return connection
        connection.close()
        if len(self._speak_http2) >= _MAX_HTTP2:
            self._speak_http2.clear()
        self._speak_http2.add(server)
        return None

    async def _connected(self, server: Server) -> Connection:
        """A connection to the first of the server's addresses that answers. asyncio's own race between them does not
        work with mitmproxy's tasks, which begin at once."""
        loop, context = asyncio.get_running_loop(), self._context if server.is_secure else None
        found = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
        families: dict[int, list[str]] = {}
        for family, _, _, _, socket_address in found:
            families.setdefault(family, []).append(str(socket_address[0]))
        *others, last = [one for each in itertools.zip_longest(*families.values()) for one in each if one]
        hostname = server.host if context else None

        async def connect(address: str) -> Connection:
            _, connection = await loop.create_connection(
                Connection, address, server.port, ssl=context, server_hostname=hostname
            )
            return connection

        for address in others:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_NEXT_ADDRESS):
                    return await connect(address)
        return await connect(last)


async def _sent(connection: Connection, head: bytes, body: bytes, *, was_kept: bool) -> bool:
    """Send a request. False if the server was closing the kept connection: it did not process the request."""
    try:
        await connection.send(head, body)
    except BaseException as error:
        connection.close()
        is_broken = isinstance(error, (httpx2.NetworkError, httpx2.RemoteProtocolError))
        if was_kept and is_broken and not connection.has_received:
            return False
        raise
    return True


@cached_if_short(256)
def _parsed(url: str) -> tuple[Server, bytes, bytes]:
    """The server, the target, and the value of the Host header. Cached: loops repeat the same URLs."""
    parsed = httpx2.URL(url)
    is_secure = parsed.scheme == "https"
    port = parsed.port or (443 if is_secure else 80)
    return Server(parsed.raw_host.decode("ascii"), port, is_secure), parsed.raw_path, parsed.netloc
