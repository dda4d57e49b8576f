"""The pooled connections for the proxy's own requests to models, made with mitmproxy's options for connections."""

import asyncio
import os
import ssl

import certifi
import httpx2
from mitmproxy import ctx

from addon.core.short_cache import cached_if_short
from addon.loop.clients import no_cookies
from addon.loop.direct import Direct
from addon.loop.upstream import Outgoing

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
"""mitmproxy's options that shape a connection."""

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
"""The methods whose answers have a body like any other's."""

_MOST_HOSTS = 1024
"""The number of hosts whose certificate is cached. It is bounded because clients choose the regions in host names."""


class UpstreamPool:
    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], httpx2.AsyncClient] = {}
        self._direct: dict[str, Direct] = {}
        self._certificates: dict[str, str] = {}
        self._retired: list[httpx2.AsyncClient | Direct] = []  # may still have requests in flight

    def configure(self, updated: set[str]) -> None:
        if updated & _OPTIONS:
            self._retire()

    async def close(self) -> None:
        """Call this after the loops have ended: to a loop a request cut off here looks like a failing upstream."""
        self._retire()
        retired, self._retired = self._retired, []
        await asyncio.gather(*(one.aclose() for one in retired))

    def _retire(self) -> None:
        self._retired += [*self._clients.values(), *self._direct.values()]
        self._clients.clear()
        self._direct.clear()
        self._certificates.clear()

    def direct_for(self, request: Outgoing) -> Direct | None:
        """The connections for a request without an upstream proxy."""
        if request.proxy or request.method not in _METHODS or not request.url.startswith(("https:", "http:")):
            return None
        certificate = self._certificate_for(_host_of(request.url))
        direct = self._direct.get(certificate)
        if direct is None:
            direct = self._direct[certificate] = Direct(_trust(certificate), http2=ctx.options.http2)
        return direct

    def client_for(self, request: Outgoing) -> httpx2.AsyncClient:
        """The client for the request's host and upstream proxy."""
        return self.client_for_url(request.url, request.proxy)

    def client_for_url(self, url: str, proxy: str = "") -> httpx2.AsyncClient:
        """`proxy`: the URL of the upstream proxy, "" for a direct connection."""
        certificate = self._certificate_for(_host_of(url))
        client = self._clients.get((proxy, certificate))
        if client is None:
            client = self._clients[proxy, certificate] = httpx2.AsyncClient(
                http2=ctx.options.http2,
                verify=_trust(certificate),
                proxy=_upstream_proxy(proxy) if proxy else None,
                trust_env=False,
                follow_redirects=False,
                cookies=no_cookies(),
                limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            )
            client.headers.clear()  # requests carry only the headers that they are given
        return client

    def _certificate_for(self, host: str) -> str:
        """Cached: reading an option copies it, and the search touches the disk."""
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
