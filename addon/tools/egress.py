"""The HTTP client of HTTP tools, which connects only to what `graft_egress` allows.

Each connection checks the address that it then connects to, so neither a redirect nor a name that resolves to another
address a moment later can bypass the check.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import httpcore2
import httpx2

from addon.core.security.egress import EgressRule, egress_allowed, unwrap_address


class EgressRefused(Exception):
    """The connection is not allowed. The message is for the model and names no address."""


class Egress(httpcore2.AsyncNetworkBackend):
    """Makes allowed connections. `own_ports`: the proxy's current listening ports. They are refused on every address of
    this machine, because a tool would have the proxy's own rights there."""

    def __init__(self, rules: Sequence[EgressRule] = (), own_ports: Callable[[], Collection[int]] = frozenset) -> None:
        self._rules = rules
        self._own_ports = own_ports
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first of the host's allowed addresses that answers. Raises EgressRefused,
        httpcore2.ConnectError, httpcore2.ConnectTimeout."""
        now = asyncio.get_running_loop().time
        deadline = None if timeout is None else now() + timeout
        addresses = await _addresses(host, port, timeout)
        allowed = [address for address in addresses if self._allows(host, address, port)]
        if not allowed:
            raise EgressRefused("graft_egress does not allow this connection")
        for remaining in range(len(allowed), 0, -1):
            share = None if deadline is None else max(deadline - now(), 0) / remaining
            try:
                return await self._network.connect_tcp(
                    allowed[-remaining], port, timeout=share, local_address=local_address, socket_options=socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if remaining == 1:
                    raise
        raise AssertionError("the last try returns or raises")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _allows(self, host: str, address: str, port: int) -> bool:
        if port in self._own_ports() and is_own_address(address):
            return False
        return egress_allowed(self._rules, host, address, port)


class EgressTransport(httpx2.AsyncHTTPTransport):
    """httpx2's transport with its connections made by `egress`, for which httpx2 has no option."""

    def __init__(self, egress: Egress, **options: Any) -> None:
        super().__init__(verify=trust(), **options)
        if not hasattr(self._pool, "_network_backend"):
            raise RuntimeError(f"toolgraft does not fit httpcore2 {version('httpcore2')}: it has no _network_backend")
        self._pool._network_backend = egress


@cache
def trust() -> ssl.SSLContext:
    """The system's certificate authorities, for tools of all kinds. Reading them takes some 30 ms, hence once.

    `SSL_CERT_FILE` does not count: a shell that is set up for a client names the proxy's own authority there."""
    return httpx2.create_ssl_context(trust_env=False)


def is_own_address(host: str) -> bool:
    """Whether an address literal is this machine's: a socket can be bound only to those."""
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
        raise httpcore2.ConnectTimeout(str(error)) from error
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(str(error)) from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
