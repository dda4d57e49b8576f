"""Flows that need a tool loop: sent to the loopback server, and put back to what they were when their answer comes."""

from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from mitmproxy import http
from mitmproxy.proxy.mode_specs import UpstreamMode

from addon.graft.exchange import Exchange
from addon.hooks.clients import Clients, proxy_of
from addon.hooks.headers import put
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.routing import Routing
from addon.hooks.watching import Watching
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

    def __init__(self, lifecycle: Lifecycle, routing: Routing, watching: Watching, clients: Clients) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.watching = watching
        self.clients = clients
        self._diverted: WeakKeyDictionary[http.HTTPFlow, _Diverted] = WeakKeyDictionary()
        self._streamed: WeakKeyDictionary[http.HTTPFlow, _Kept] = WeakKeyDictionary()

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
        mode = flow.client_conn.proxy_mode
        proxy = proxy_of(mode) if isinstance(mode, UpstreamMode) and address.to is None else ""
        upstream = Upstream(self.clients.to(sent_to, proxy), watcher)
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
