"""Flows that need a tool loop: sent to the loopback server, and put back to what they were when their answer comes."""

import asyncio
import os
import ssl
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import certifi
import httpx2
from mitmproxy import ctx, http
from mitmproxy.proxy.mode_specs import UpstreamMode

from addon.graft.exchange import Exchange
from addon.hooks.headers import put
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.routing import Routing
from addon.hooks.watching import Watching
from addon.loop.clients import no_cookies
from addon.loop.runner import Runner
from addon.loop.server import SECRET_HEADER
from addon.loop.upstream import Address, Upstream
from addon.surfaces import Framing, Operation

_NOT_SENT = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""What is between the client and the proxy alone. HTTP/2 upstream refuses a request that has some of it."""


_OF_CLIENTS = frozenset(
    {
        "client_certs",
        "http2",
        "ssl_insecure",
        "ssl_verify_upstream_trusted_ca",
        "ssl_verify_upstream_trusted_confdir",
        "upstream_auth",
    }
)
"""Options of mitmproxy's by which connections are made."""


@dataclass(slots=True)
class _Diverted:
    """A flow as it was, and the secret by which its loop is known."""

    scheme: str
    host: str
    port: int
    path: str
    authority: str
    body: bytes | None
    fields: tuple[tuple[bytes, bytes], ...]
    secret: bytes
    streams: bool
    restored: bool = False


class _Kept:
    """Passes a stream on, and keeps it."""

    def __init__(self) -> None:
        self.body = bytearray()

    def __call__(self, chunk: bytes) -> list[bytes]:
        self.body += chunk
        return [chunk] if chunk else []


class Looping:
    """Stands behind the grafting, which hands it the requests whose calls the proxy may run."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, watching: Watching) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.watching = watching
        self._diverted: WeakKeyDictionary[http.HTTPFlow, _Diverted] = WeakKeyDictionary()
        self._streamed: WeakKeyDictionary[http.HTTPFlow, _Kept] = WeakKeyDictionary()
        self._clients: dict[tuple[str, str], httpx2.AsyncClient] = {}
        self._retired: list[httpx2.AsyncClient] = []  # loops may still be on their way with these
        self._closing: asyncio.Future[list[None]] | None = None

    def configure(self, updated: set[str]) -> None:
        if updated & _OF_CLIENTS:
            self._retire()

    def done(self) -> None:
        self._retire()
        if self._retired:
            retired, self._retired = self._retired, []
            self._closing = asyncio.gather(*(client.aclose() for client in retired))

    def _retire(self) -> None:
        self._retired += self._clients.values()
        self._clients.clear()

    def wants(self, exchange: Exchange) -> bool:
        """Whether the request may lead to calls that the proxy runs, or its answer has to be written anew anyway."""
        runtime = self.lifecycle.runtime
        if runtime is not None and not exchange.wire.native:
            return True
        if runtime is None or exchange.scope.delivery not in ("auto", "loop"):
            return False
        if exchange.target.operation not in (Operation.GENERATE, Operation.STREAM) or exchange.resumes is not None:
            return False  # an answer that was begun without a loop is ended without one
        return any(runtime.executors.can_run(exchange.scope, name) for name in exchange.plan.names)

    def divert(self, flow: http.HTTPFlow, exchange: Exchange, body: bytes) -> None:
        """Send the flow to the loopback server, where its loop is waiting for it."""
        runtime = self.lifecycle.runtime
        assert runtime is not None
        request = flow.request
        fields = tuple(field for field in request.headers.fields if field[0].lower() not in _NOT_SENT)
        fields += ((b"accept-encoding", b"identity"),)
        true_url = self.routing.true_url(flow)
        sent_to = request.url
        address = Address(request.method, true_url, fields, sent_to if sent_to != true_url else None)
        watcher = self.watching.of(flow.client_conn, exchange.scope.session, request.data.content or b"")
        upstream = Upstream(self._client(flow, sent_to, redirected=address.to is not None), watcher)
        runner = Runner(runtime.grafter, runtime.executors, upstream, exchange, address, body)
        secret = runtime.loops.register(runner, partial(self._restore, flow))
        self._diverted[flow] = _Diverted(
            request.scheme,
            request.data.host,
            request.data.port,
            request.path,
            request.authority,
            request.data.content,
            request.headers.fields,
            secret,
            exchange.target.framing is not Framing.JSON,
        )
        request.scheme, request.data.host, request.data.port = "http", "127.0.0.1", runtime.loops.port
        put(request.headers, SECRET_HEADER, secret)
        put(request.headers, b"content-length", b"0")
        request.headers.pop("transfer-encoding", None)
        request.data.content = b""
        flow.server_conn.via = None

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        self._restore(flow)
        diverted = self._diverted.pop(flow, None)
        if diverted is not None and diverted.streams and flow.response is not None:
            flow.response.stream = self._streamed[flow] = _Kept()

    def response(self, flow: http.HTTPFlow) -> None:
        streamed = self._streamed.pop(flow, None)
        if streamed is not None and flow.response is not None:
            flow.response.data.content = bytes(streamed.body)  # for whoever shows or writes the flow

    def error(self, flow: http.HTTPFlow) -> None:
        self._restore(flow)
        diverted = self._diverted.pop(flow, None)
        if diverted is not None and self.lifecycle.runtime is not None:
            self.lifecycle.runtime.loops.forget(diverted.secret)

    def _restore(self, flow: http.HTTPFlow) -> None:
        """Make the request what it was, as soon as it need not be found by the loopback server any more: whoever shows
        or writes the flow while its loop runs is not to see where it was sent."""
        diverted = self._diverted.get(flow)
        if diverted is None or diverted.restored:
            return
        diverted.restored = True
        request = flow.request
        request.scheme, request.data.host, request.data.port = diverted.scheme, diverted.host, diverted.port
        request.path, request.authority = diverted.path, diverted.authority
        request.headers.fields = diverted.fields
        request.data.content = diverted.body

    def _client(self, flow: http.HTTPFlow, sent_to: str, *, redirected: bool) -> httpx2.AsyncClient:
        """The pooled client for this way out: directly, or through the upstream proxy of the flow's mode."""
        mode = flow.client_conn.proxy_mode
        proxy = ""
        if isinstance(mode, UpstreamMode) and not redirected:
            proxy = f"{mode.scheme}://{mode.address[0]}:{mode.address[1]}"
        certificate = _certificate(httpx2.URL(sent_to).host)
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
            client.headers.clear()  # requests have the headers that their client gave them, and no others
        return client


def _trust(certificate: str = "") -> ssl.SSLContext:
    """Certificates as mitmproxy checks them, and the file of the one that it shows itself."""
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
    """The file of the certificate that the host is shown, found as mitmproxy finds it; empty where there is none."""
    named = os.path.expanduser(ctx.options.client_certs or "")
    return next((file for file in (named, os.path.join(named, f"{host}.pem")) if named and os.path.isfile(file)), "")


def _upstream_proxy(url: str) -> httpx2.Proxy:
    name, colon, password = (ctx.options.upstream_auth or "").partition(":")
    context = _trust(_certificate(httpx2.URL(url).host)) if url.startswith("https:") else None
    return httpx2.Proxy(url, ssl_context=context, auth=(name, password) if colon else None)
