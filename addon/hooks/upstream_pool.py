"""The pooled connections for the proxy's own requests to models, made according to mitmproxy's options."""

import asyncio
import os
import ssl
from functools import partial

import certifi
import httpx2
from mitmproxy import ctx

from addon.core.short_cache import cached_if_short
from addon.loop.upstream import Outgoing
from addon.tools.owned_connections import LIMITS, OwnedConnections

_OPTIONS = frozenset(
    {
        "client_certs",
        "http2",
        "ssl_insecure",
        "ssl_verify_upstream_trusted_ca",
        "ssl_verify_upstream_trusted_confdir",
        "upstream_auth",
    }
)
"""mitmproxy's options that affect a connection."""

_MOST_HOSTS = 1024
"""The most hosts whose certificate is cached. Limited because clients choose the regions in host names."""


class UpstreamPool:
    def __init__(self) -> None:
        self._connections: dict[tuple[str, str], OwnedConnections] = {}
        self._certificates: dict[str, str] = {}
        self._retired: list[OwnedConnections] = []  # may still have requests in flight

    def configure(self, updated: set[str]) -> None:
        if updated & _OPTIONS:
            self._retire()

    async def close(self) -> None:
        """Call this after the loops have ended: a loop would take a request cut off here for a failing upstream."""
        self._retire()
        retired, self._retired = self._retired, []
        await asyncio.gather(*(one.aclose() for one in retired))

    def _retire(self) -> None:
        self._retired += self._connections.values()
        self._connections.clear()
        self._certificates.clear()

    def connections_for(self, request: Outgoing) -> OwnedConnections:
        """The connections for the request's host and upstream proxy."""
        certificate = self._certificate_for(_host_of(request.url))
        key = request.proxy, certificate
        if key not in self._connections:
            make = partial(
                httpx2.AsyncHTTPTransport,
                http2=ctx.options.http2,
                verify=_trust(certificate),
                proxy=_upstream_proxy(request.proxy) if request.proxy else None,
                trust_env=False,
                limits=LIMITS,
            )
            self._connections[key] = OwnedConnections(make)
        return self._connections[key]

    def _certificate_for(self, host: str) -> str:
        """Cached, because reading an option copies it, and the search reads the disk."""
        found = self._certificates.get(host)
        if found is None:
            if len(self._certificates) >= _MOST_HOSTS:
                self._certificates.clear()
            found = self._certificates[host] = _certificate(host)
        return found


@cached_if_short(256)
def _host_of(url: str) -> str:
    return httpx2.URL(url).host


def _trust(certificate: str = "") -> ssl.SSLContext:
    """Verifies servers as mitmproxy does. `certificate`: the file of the client certificate, or ""."""
    options = ctx.options
    file, folder = options.ssl_verify_upstream_trusted_ca, options.ssl_verify_upstream_trusted_confdir
    if options.ssl_insecure:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)
    if certificate:
        context.load_cert_chain(certificate)
    return context


def _certificate(host: str) -> str:
    """The file of the client certificate for a host, found as mitmproxy does, or ""."""
    named = os.path.expanduser(ctx.options.client_certs or "")
    return next((file for file in (named, os.path.join(named, f"{host}.pem")) if named and os.path.isfile(file)), "")


def _upstream_proxy(url: str) -> httpx2.Proxy:
    name, colon, password = (ctx.options.upstream_auth or "").partition(":")
    context = _trust(_certificate(_host_of(url))) if url.startswith("https:") else None
    return httpx2.Proxy(url, ssl_context=context, auth=(name, password) if colon else None)
