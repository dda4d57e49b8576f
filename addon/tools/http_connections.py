"""HTTP connections that serve one owner each, and those of tools, which lead only to what `graft_egress` allows.

If a server sends more bytes than belong to its answer, they can become the beginning of the next answer on that
connection. So each owner (a credential) has its own transport and connections.

An answer without a length ends with its connection. Anyone on the path can cut a TCP connection, so such an answer
counts as complete only if the server ended it within TLS.

For tools, the host's name is resolved and its addresses checked here, and the connection is made to such an address,
not to the name. So neither a redirect nor a name that resolves to another address a moment later can bypass the check.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Sequence
from functools import cache

import httpx2

from addon.core.security.egress import EgressRule, egress_allowed, unwrap_address

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


class EgressRefused(Exception):
    """The connection is not allowed. The message is for the model and names no address."""


class Egress:
    """Decides which addresses tools may connect to. `own_ports`: the proxy's current listening ports, which are refused
    on every address of this machine, because a tool would have the proxy's rights there."""

    def __init__(self, rules: Sequence[EgressRule] = (), own_ports: Callable[[], Collection[int]] = frozenset) -> None:
        self._rules = rules
        self._own_ports = own_ports

    async def addresses(self, host: str, port: int, timeout: float | None) -> list[str]:
        """The host's allowed addresses, at least one. Raises EgressRefused, httpx2.ConnectError,
        httpx2.ConnectTimeout."""
        allowed = [one for one in await _addresses(host, port, timeout) if self._allows(host, one, port)]
        if not allowed:
            raise EgressRefused("graft_egress does not allow this connection")
        return allowed

    def _allows(self, host: str, address: str, port: int) -> bool:
        if port in self._own_ports() and is_own_address(address):
            return False
        return egress_allowed(self._rules, host, address, port)


class EgressTransport(httpx2.AsyncBaseTransport):
    """Sends requests to the first allowed address of their host that answers. Raises EgressRefused and httpx2's
    errors."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._by_host: dict[str, httpx2.AsyncHTTPTransport] = {}  # a certificate is checked for one host

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url, timeouts = request.url, request.extensions.get("timeout", {})
        host, limit = url.raw_host.decode("ascii"), timeouts.get("connect")
        now = asyncio.get_running_loop().time
        deadline = None if limit is None else now() + limit
        addresses = await self._egress.addresses(host, url.port or (443 if url.scheme == "https" else 80), limit)
        transport = self.transport_for(host)
        for remaining in range(len(addresses), 0, -1):
            share = None if deadline is None else max(deadline - now(), 0) / remaining
            extensions = {"timeout": {**timeouts, "connect": share}, "sni_hostname": host}
            sent = httpx2.Request(
                request.method,
                url.copy_with(host=addresses[-remaining]),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await transport.handle_async_request(sent)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if remaining == 1:
                    raise
        raise AssertionError("the last try returns or raises")

    def transport_for(self, host: str) -> httpx2.AsyncHTTPTransport:
        if host not in self._by_host:
            self._by_host[host] = httpx2.AsyncHTTPTransport(verify=trust(), trust_env=False, limits=LIMITS)
        return self._by_host[host]

    async def aclose(self) -> None:
        for transport in self._by_host.values():
            await transport.aclose()


@cache
def trust() -> ssl.SSLContext:
    """The system's certificate authorities, read once (30 ms). `SSL_CERT_FILE` is ignored: in a shell that is set up
    for a client, it names the proxy's own authority."""
    return httpx2.create_ssl_context(trust_env=False)


def is_own_address(host: str) -> bool:
    """Whether an address literal is this machine's, so that a socket can be bound to it."""
    host = host.strip("[]")
    try:
        address = unwrap_address(host)
        if address.is_loopback or address.is_unspecified:
            return True
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


async def _addresses(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise httpx2.ConnectTimeout(str(error)) from error
    except (OSError, UnicodeError) as error:
        raise httpx2.ConnectError(str(error)) from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
