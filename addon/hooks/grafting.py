"""Requests rewritten and answers captured: the hooks around `addon.graft`. No logic of its own, and nothing raised."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from mitmproxy import connection, flowfilter, http
from mitmproxy.connection import ConnectionState

from addon.graft.capture import Capture, concerns
from addon.graft.exchange import Abandoned, Exchange, Reply
from addon.graft.scope import Scope
from addon.hooks.encoding import Decompress, decompressor
from addon.hooks.headers import body_of, put, set_body, value
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.looping import Looping
from addon.hooks.perflow import PerFlow
from addon.hooks.routing import Route, Routing
from addon.hooks.runtime import Runtime
from addon.surfaces import Framing, Operation
from store.base import StoreUnavailable

logger = logging.getLogger("toolgraft")

_LOOK = 0.2
"""Seconds between two looks at whether a waiting client is still there."""


@dataclass(slots=True)
class _Way:
    """A request of a session that has a toolset, on its way."""

    route: Route
    scope: Scope
    encoding: str | None
    exchange: Exchange | None = None
    capture: Capture | None = None


@dataclass(slots=True)
class Kept:
    """What a recording needs of an exchange that was rewritten: the client's request, and upstream's own answer."""

    sent: bytes
    received: bytearray | None = None


class Grafting:
    """`keeps` asks for `kept`. `replied` are the flows that were answered here: by a reply, or by a loop,
    whose requests to the model are flows of their own."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, looping: Looping) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.looping = looping
        self.keeps = False
        self.kept = PerFlow[Kept]("kept")
        self.replied = PerFlow[bool]("replied")
        self._ways = PerFlow[_Way]("way")

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        route = self.routing.routes.get(flow)
        runtime = self.lifecycle.runtime
        if route is None or runtime is None or flow.response is not None:
            return None
        if route.target.operation is Operation.LIVE:
            return None  # what is rewritten there are the frames
        return self._begin(flow, route, runtime)

    async def _begin(self, flow: http.HTTPFlow, route: Route, runtime: Runtime) -> None:
        if not runtime.ready.is_set():
            await runtime.ready.wait()  # mitmproxy listens before the tool sources have started
        try:
            scope = await runtime.grafter.scope(route.session)
        except StoreUnavailable as error:
            outcome = runtime.grafter.store_failed(route.target, b"", error)
            if isinstance(outcome, Reply):
                flow.response = response_of(outcome)
            return
        if scope is None:
            return
        self._ways[flow] = _Way(route, scope, put(flow.request.headers, b"accept-encoding", b"identity"))
        flow.request.stream = False  # whoever wanted it: what streams is not rewritten

    def request(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        way = self._ways.get(flow)
        runtime = self.lifecycle.runtime
        if way is None or runtime is None or flow.response is not None or flow.error is not None:
            return None
        return self._rewrite(flow, way, runtime)

    async def _rewrite(self, flow: http.HTTPFlow, way: _Way, runtime: Runtime) -> None:
        if self.lifecycle.filter is not None and not flowfilter.match(self.lifecycle.filter, flow):
            self._let_go(flow, way)
            return
        body = body_of(flow.request)
        if body is None:
            self._let_go(flow, way)
            return
        hangup = _Hangup(flow.client_conn)
        outcome = await runtime.grafter.request(
            way.route.target,
            way.scope,
            body,
            takes_ids=way.route.takes_ids,
            hangup=hangup.seen,
        )
        if isinstance(outcome, Abandoned) or hangup.missed:
            flow.kill()
        elif isinstance(outcome, Reply):
            del self._ways[flow]
            self.replied[flow] = True
            flow.response = response_of(outcome)
        else:
            if outcome.exchange is not None and self.looping.wants(outcome.exchange):
                del self._ways[flow]
                self.replied[flow] = True
                self.looping.divert(flow, outcome.exchange, outcome.body)
                return
            if self.keeps:
                self.kept[flow] = Kept(body)
            way.exchange = outcome.exchange
            if outcome.body is not body:
                set_body(flow.request, outcome.body)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        way = self._ways.get(flow)
        runtime = self.lifecycle.runtime
        if way is None or way.exchange is None or runtime is None or flow.response is None:
            return
        framing = _framing(way.route, flow.response)
        if framing is None:
            del self._ways[flow]
            return
        if framing is Framing.JSON:
            flow.response.stream = False
            return
        way.capture = Capture(runtime.grafter, way.exchange, framing)
        if flow.response.data.content is not None:
            return  # replayed: the whole body is there already
        decompress = decompressor(flow.response.headers.get("content-encoding", ""))
        if decompress is None:
            runtime.grafter.warn("an answer was passed on as it came: its compression is not known")
            del self._ways[flow]
            return
        _as_stream(flow)
        kept = self.kept.get(flow)
        if kept is not None:
            kept.received = bytearray()
        flow.response.stream = _Tee(way.capture, decompress, kept.received if kept else None)

    def response(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        way = self._ways.pop(flow)
        runtime = self.lifecycle.runtime
        if way is None or way.exchange is None or runtime is None or flow.response is None:
            return None
        body = None if flow.response.stream else body_of(flow.response)
        if body is None:
            return None
        if way.capture is None and not concerns(way.exchange, body):
            return None
        capture = way.capture or Capture(runtime.grafter, way.exchange, Framing.JSON)
        return self._capture(flow, flow.response, way, runtime, capture, body)

    async def _capture(
        self,
        flow: http.HTTPFlow,
        response: http.Response,
        way: _Way,
        runtime: Runtime,
        capture: Capture,
        body: bytes,
    ) -> None:
        try:
            if way.capture is not None:
                seen = capture.feed(body) + capture.finish()
            else:
                seen = await capture.whole(body)
        except StoreUnavailable as error:
            outcome = runtime.grafter.store_failed(way.route.target, b"", error)
            if isinstance(outcome, Reply):
                flow.response = response_of(outcome)
            return
        if seen != body:
            if (kept := self.kept.get(flow)) is not None:
                kept.received = bytearray(body)
            set_body(response, seen)

    def error(self, flow: http.HTTPFlow) -> None:
        self._ways.pop(flow)

    def _let_go(self, flow: http.HTTPFlow, way: _Way) -> None:
        """As if the session had no toolset."""
        del self._ways[flow]
        if way.encoding is None:
            flow.request.headers.pop("accept-encoding", None)
        else:
            flow.request.headers["accept-encoding"] = way.encoding


class _Hangup:
    """Whether the client of a request that waits has closed its side. mitmproxy tells nobody while a hook runs: one
    has to look.

    A client that has closed only its sending half counts as gone as well: mitmproxy takes any end of what an HTTP/1
    client sends for the end of its interest, and closes the connection itself."""

    def __init__(self, client: connection.Client) -> None:
        self.client = client
        self.looked = False

    async def seen(self) -> None:
        """Returns when it has."""
        self.looked = True
        while self.client.state is ConnectionState.OPEN:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    @property
    def missed(self) -> bool:
        """Whether it has, and the wait was over before anyone looked again."""
        return self.looked and self.client.state is not ConnectionState.OPEN


class _Tee:
    """The callable that mitmproxy hands the bytes of a stream to; b"" is the end. It never raises. `received` gathers
    what came."""

    def __init__(self, capture: Capture, decompress: Decompress, received: bytearray | None = None) -> None:
        self.received = received
        self.capture = capture
        self.decompress = decompress
        self.broken = False

    def __call__(self, chunk: bytes) -> Iterable[bytes]:
        if self.broken:
            return [chunk] if chunk else []
        try:
            plain = self.decompress(chunk)
            if self.received is not None:
                self.received += plain
            out = self.capture.feed(plain) if plain else b""
            if not chunk:
                out += self.capture.finish()
        except Exception:
            logger.exception("an answer is passed on as it comes from here on")
            self.broken = True
            out = chunk
        # an empty chunk would end a chunked body
        return [out] if out else []


def _framing(route: Route, response: http.Response) -> Framing | None:
    """How an answer came; None for one that is none of ours: an error, or something else than was asked for."""
    if response.status_code != 200:
        return None
    kind = (value(response.headers, b"content-type") or "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return Framing.SSE
    if kind != "application/json":
        return None
    return Framing.ARRAY if route.target.operation is Operation.STREAM else Framing.JSON


def _as_stream(flow: http.HTTPFlow) -> None:
    """The length will be another, and nothing is compressed any more."""
    assert flow.response is not None
    headers = flow.response.headers
    headers.pop("content-encoding", None)
    if headers.pop("content-length", None) is not None and not (flow.request.is_http2 or flow.request.is_http3):
        headers["transfer-encoding"] = "chunked"


def response_of(reply: Reply) -> http.Response:
    return http.Response.make(reply.status, reply.body, {"content-type": reply.content_type})
