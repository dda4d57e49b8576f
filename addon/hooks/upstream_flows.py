"""The proxy's own requests to models, made by loops and front doors and sent over pooled connections.

Each is a flow, visible in the flow list, in `-w` files and to every other addon. The loop sends the flow's request and
receives its answer as they are after the hooks.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import certifi
import httpx2
from mitmproxy import connection, ctx, flow, hooks, http
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.net import server_spec
from mitmproxy.proxy.mode_specs import ProxyMode, UpstreamMode

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.core.security.untrusted import cached_if_short
from addon.gateway.engine import Caller
from addon.hooks.messages import UNDECODED, FlowState, body_of, names, new_request, new_response, redirected, url_of
from addon.hooks.streams import comes_whole, is_stream
from addon.loop.upstream import Address, Headers, Outgoing, Received, Upstream
from addon.settings import Settings
from addon.tools.http_connections import LIMITS, OwnedConnections

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


METADATA = "graft"
"""The key in a flow's metadata for the facts that a script or a replay needs besides the flow. `request` numbers the
proxy's requests for a client, from 1."""

NOT_SENT = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of a single connection. Over HTTP/2 the upstream refuses some of them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The owner of an exchange. `sent`: the body of the client's request; None from the loop's second round on."""

    session: str
    sent: bytes | None


class ShadowFlows:
    """The flows of the proxy's own requests (`flows`), which other hooks ignore, and how they are made."""

    def __init__(self) -> None:
        self.flows = FlowState[Origin]("origin")
        self.settings: Callable[[], Settings] = Settings
        self.has_comments = False
        """Whether each flow has a comment, for a list of flows."""


@dataclass(slots=True)
class LoopWatcher:
    """`addon.loop.upstream.Watcher` for the client that a loop answers. `streams`: whether the model streams its
    answers. `via`: the upstream proxy of the loop's requests. `metadata`: added to each flow."""

    shadow_flows: ShadowFlows
    client: connection.Client
    origin: Origin
    streams: bool
    via: server_spec.ServerSpec | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    _requests: int = 0

    async def begin(self, address: Address, body: bytes) -> "ShadowExchange":
        request = new_request(address.method, address.url, address.headers, body)
        if b"host" not in names(request.headers):
            request.headers.insert(0, "Host", netloc(address.url))
        server = connection.Server(address=(request.host, request.port), via=self.via)
        shadow = http.HTTPFlow(self.client, server, live=True)
        shadow.request = request
        self._requests += 1
        shadow.metadata[METADATA] = {**dict(self.metadata), "request": self._requests}
        if self.shadow_flows.has_comments:
            shadow.comment = f"round {self._requests} of a loop for session {self.origin.session}"
        origin = self.origin if self._requests == 1 else Origin(self.origin.session, None)
        self.shadow_flows.flows[shadow] = origin
        exchange = ShadowExchange(shadow, streams=self.streams, settings=self.shadow_flows.settings())
        await exchange.begin()
        return exchange


class ShadowExchange:
    """`addon.loop.upstream.UpstreamExchange` as a flow of mitmproxy."""

    def __init__(self, shadow: http.HTTPFlow, *, streams: bool, settings: Settings) -> None:
        self.flow = shadow
        self._streams = streams
        self._settings = settings
        self._answer: Received | None = None  # set after the hook of the whole answer
        self._sent: list[bytes] = []  # the chunks of a stream, shared with the client's flow if nothing changes them

    async def begin(self) -> None:
        shadow = self.flow
        shadow.is_replay = "request"  # mitmproxy asks replays for no proxy password; the client has already sent it
        await _run_hook("requestheaders", shadow)
        shadow.is_replay = None
        if shadow.error is None:
            await _run_hook("request", shadow)
        if shadow.error is None and shadow.response is not None:
            # another addon has answered, for example `--server-replay`
            shadow.response.timestamp_start = time.time()
            await _run_hook("responseheaders", shadow)
            await self._end()

    @property
    def outgoing(self) -> Outgoing | Received:
        if self.flow.error is not None:
            return _killed()
        if self._answer is not None:
            return self._answer
        request, proxy = redirected(self.flow.request, self._settings.redirect), ""
        if request is None:
            request, proxy = self.flow.request, proxy_url(self.flow.server_conn.via)
        fields = [field for field in request.headers.fields if field[0].lower() not in NOT_SENT]
        return Outgoing(request.method, url_of(request), fields, request.raw_content or b"", proxy)

    async def receive_head(self, status: int, headers: Headers) -> Received | None:
        packed = any(name.lower() == b"content-encoding" for name, _ in headers)
        not_kept = (b"content-encoding", b"transfer-encoding", *((b"content-length",) if packed else ()))
        response = new_response(status, [field for field in headers if field[0].lower() not in not_kept])
        self.flow.response = response
        response.stream = is_stream(response, asked=self._streams) and not self._comes_whole()
        await _run_hook("responseheaders", self.flow)
        if self.flow.error is not None:
            return _killed()
        response = self.flow.response
        if not response.stream or self._comes_whole():
            return None
        return Received(response.status_code, response.headers.fields)

    async def receive_body(self, body: bytes) -> Received:
        assert self.flow.response is not None
        self.flow.response.data.content = self.transform(body) + self.transform(b"")
        self.flow.response.stream = False
        await self._end()
        assert self._answer is not None
        return self._answer

    def transform(self, chunk: bytes) -> bytes:
        stream = self.flow.response.stream if self.flow.response is not None else False
        if callable(stream):
            given = stream(chunk)
            chunk = given if isinstance(given, bytes) else b"".join(given)
        self._sent.append(chunk)
        return chunk

    def _comes_whole(self) -> bool:
        return comes_whole(self.flow, self._settings)

    async def close(self, error: str | None) -> None:
        shadow = self.flow
        if shadow.error is None and self._answer is None:
            if shadow.response is not None:
                shadow.response.data.content = b"".join(self._sent)
            if error is not None:
                shadow.error = flow.Error(error)
            elif shadow.response is not None:
                await self._end()
        if shadow.error is not None:
            await _run_hook("error", shadow)
        shadow.live = False

    async def _end(self) -> None:
        """Run the hook of the complete answer."""
        response = self.flow.response
        assert response is not None
        response.timestamp_end = time.time()
        if self.flow.error is None:
            await _run_hook("response", self.flow)
        response = self.flow.response
        if self.flow.error is not None or response is None:
            self._answer = _killed()
            return
        # an addon may have compressed the body, and a replay may contain it compressed
        body = body_of(response, self._settings.max_answer)
        if body is None and response.data.content is not None:
            self._answer = _error(502, "UNAVAILABLE", UNDECODED)
            return
        fields = [field for field in response.headers.fields if field[0].lower() != b"content-encoding"]
        self._answer = Received(response.status_code, fields, body or b"")


def proxy_url(via: server_spec.ServerSpec | None) -> str:
    """The URL of an upstream proxy, "" for none."""
    return "" if via is None else f"{via[0]}://{via[1][0]}:{via[1][1]}"


def _killed() -> Received:
    return _error(499, "CANCELLED", "the request to the model was killed in mitmproxy")


def _error(code: int, status: str, message: str) -> Received:
    """An error of the proxy instead of the answer."""
    body = encode(replies.error(code, status, f"toolgraft: {message}"))
    return Received(code, ((b"content-type", b"application/json; charset=UTF-8"),), body)


@lru_cache(maxsize=256)
def netloc(url: str) -> str:
    """A URL's host, with its port unless it is the scheme's default. Cached, because a loop repeats its URLs."""
    return httpx2.URL(url).netloc.decode()


async def _run_hook(name: str, subject: http.HTTPFlow) -> None:
    kind: Callable[[http.HTTPFlow], hooks.Hook] = hooks.all_hooks[name]
    await ctx.master.addons.trigger_event(kind(subject))
    if subject.intercepted:
        await subject.wait_for_resume()


class MitmUpstreamFactory:
    """`addon.gateway.engine.UpstreamFactory` by means of mitmproxy."""

    def __init__(self, shadow_flows: ShadowFlows, pool: UpstreamPool) -> None:
        self.shadow_flows = shadow_flows
        self.pool = pool
        self._via: server_spec.ServerSpec | None = None

    def configure(self, updated: set[str]) -> None:
        if "mode" in updated:
            modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
            vias = [(mode.scheme, mode.address) for mode in modes if isinstance(mode, UpstreamMode)]
            self._via = vias[0] if vias else None

    def upstream(self, caller: Caller, sent: bytes, *, streams: bool) -> Upstream:
        # a front door has no mitmproxy connection; this one shows addons the flow's origin
        client = Client(
            peername=caller.address,
            sockname=("127.0.0.1", 0),
            state=ConnectionState.OPEN,
            timestamp_start=time.time(),
        )
        # a front door always keeps its caller's tools, and the replay of a `-w` file needs to know that
        metadata = (("session", caller.session), ("client_tools", "keep"))
        origin = Origin(caller.session, sent)
        watcher = LoopWatcher(self.shadow_flows, client, origin, streams, self._via, metadata)
        return Upstream(self.pool.connections_for, watcher)
