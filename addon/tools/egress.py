"""Connections of HTTP tools, which lead only to what `graft_egress` allows.

The host's name is resolved and its addresses checked here, and the connection is made to such an address, not to the
name. So neither a redirect nor a name that resolves to another address a moment later can bypass the check.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from functools import cache

import httpx2

from addon.core.security.egress import EgressRule, egress_allowed, unwrap_address
from addon.tools.owned_connections import LIMITS


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
