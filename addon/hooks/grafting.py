"""Requests rewritten and answers captured: the hooks around `addon.graft`. No logic of its own, and nothing raised."""

import asyncio
import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

from mitmproxy import connection, flowfilter, http
from mitmproxy.connection import ConnectionState

from addon.core.framing import replies
from addon.core.framing.encoding import decompressor
from addon.graft.capture import Capture, concerns, note_answer
from addon.graft.exchange import Abandoned, Exchange, Reply
from addon.graft.grafter import EXCHANGE_FAILED
from addon.graft.session_config import SessionConfig
from addon.hooks.breaks import broke_off, told_instead
from addon.hooks.handover import handover
from addon.hooks.headers import UNDECODED, asker_in, body_of, put, set_body, url_of, value
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.looping import Looping
from addon.hooks.model_streams import CopiedStream, GraftedStream
from addon.hooks.perflow import PerFlow
from addon.hooks.routing import ENDING, Route, Routing, refusal
from addon.hooks.runtime import Runtime
from addon.hooks.secrets import redaction_of
from addon.hooks.streams import came, comes_whole, gone, is_stream, through, whole
from addon.surfaces import Framing, Operation, wire_of
from addon.surfaces.wire import Wire
from store.base import StoreUnavailable

logger = logging.getLogger("toolgraft")

_NO_URL = re.compile("[\x00-\x20\x7f\ud800-\udfff]")
"""What HTTP forbids in a URL and mitmproxy takes all the same: control characters, and bytes that are no UTF-8."""

_LOOK = 0.2
"""Seconds between two looks at whether a waiting client is still there."""


ModelStream = GraftedStream | CopiedStream


@dataclass(slots=True)
class _Way:
    """A request of a session that has a toolset, on its way."""

    route: Route
    config: SessionConfig
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
        self._noted = PerFlow[Exchange]("noted")
        self._stages = PerFlow[ModelStream]("stage")
        self._streaming = WeakSet[ModelStream]()
        lifecycle.before_stop.append(self._stop)

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
            config = await runtime.grafter.session_config(route.session)
        except EXCHANGE_FAILED as error:
            outcome = runtime.grafter.failure_outcome(route.target, b"", error)
            if isinstance(outcome, Reply):
                flow.response = response_of(outcome)
            return
        if config is None:
            return
        if _NO_URL.search(flow.request.path):
            flow.response = refusal(400, "INVALID_ARGUMENT", "the URL holds characters that must be percent-encoded")
            return
        self._ways[flow] = _Way(route, config, put(flow.request.headers, b"accept-encoding", b"identity"))
        flow.request.stream = False  # whoever wanted it: what streams is not rewritten

    def request(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        way = self._ways.get(flow)
        runtime = self.lifecycle.runtime
        if way is None or runtime is None or flow.response is not None or flow.error is not None:
            return None
        if runtime.ending:
            self._ways.pop(flow)
            self.replied[flow] = True
            flow.response = refusal(503, "UNAVAILABLE", ENDING)
            return None
        return self._rewrite(flow, way, runtime)

    async def _rewrite(self, flow: http.HTTPFlow, way: _Way, runtime: Runtime) -> None:
        try:
            await self._graft(flow, way, runtime)
        except Exception as error:
            failure = runtime.grafter.failed(error, "a request could not be sent on")
            outcome = runtime.grafter.failure_outcome(way.route.target, b"", failure)
            if isinstance(outcome, Reply):
                self._ways.pop(flow)
                self.replied[flow] = True
                flow.response = response_of(outcome)
            else:
                self._let_go(flow, way)

    async def _graft(self, flow: http.HTTPFlow, way: _Way, runtime: Runtime) -> None:
        if self.lifecycle.filter is not None and not flowfilter.match(self.lifecycle.filter, flow):
            self._let_go(flow, way)
            return
        body = body_of(flow.request, runtime.settings.max_body)
        if body is None:
            self._let_go(flow, way)
            return
        hangup = _Hangup(flow.client_conn)
        outcome = await runtime.grafter.request(
            way.route.target,
            way.config,
            body,
            asker=asker_in(flow.request),
            url=url_of(flow.request),
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
                self.looping.divert(flow, outcome.exchange, body, outcome.body)
                return
            if outcome.noted is not None:
                self._noted[flow] = outcome.noted
            if outcome.exchange is None and outcome.body is body:
                self._let_go(flow, way)
                return
            if self.keeps:
                self.kept[flow] = Kept(body)
            way.exchange = outcome.exchange
            told_instead[flow] = partial(_unreachable, way.route)
            if outcome.body is not body:
                set_body(flow.request, outcome.body)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        way = self._ways.get(flow)
        runtime = self.lifecycle.runtime
        if runtime is None or flow.response is None:
            return
        if way is None or way.exchange is None:
            self._stream_untouched(flow, runtime)
            return
        framing = _framing(way.route, flow.response)
        if framing is None:
            del self._ways[flow]
            return
        if flow.response.data.content is None and (framing is Framing.JSON or comes_whole(flow, runtime.settings)):
            words = f"the model's answer has more than {runtime.settings.max_answer} bytes (graft_max_answer)"
            whole(flow, runtime.settings.max_answer, partial(_unusable, way.exchange, words))
            return
        if framing is Framing.JSON:
            return  # replayed: the whole body is there already
        way.capture = Capture(runtime.grafter, way.exchange, _content_type(flow.response), redaction_of(flow))
        handover[flow] = way.capture.handed_over
        if flow.response.data.content is not None:
            return
        kept = self.kept.get(flow)
        if kept is not None:
            kept.received = bytearray()
        decompress = decompressor(_encoding(flow.response), runtime.settings.max_answer)
        stage = GraftedStream(way.capture, decompress, kept.received if kept else None)
        self._begun(flow, stage)
        through(flow, stage, _as_stream, is_over=stage.is_over)

    def _stream_untouched(self, flow: http.HTTPFlow, runtime: Runtime) -> None:
        """A model's stream that is not grafted goes to the client as it arrives. mitmproxy alone would hold all of it
        back."""
        route, response = self.routing.routes.get(flow), flow.response
        if route is None or response is None or flow in self.replied or response.data.content is not None:
            return
        if not is_stream(response, asked=_framing(route, response) is not Framing.JSON):
            return
        if comes_whole(flow, runtime.settings):
            return
        noted = self._noted.pop(flow)
        kept = self.kept.get(flow)
        if self.keeps and kept is None:
            kept = self.kept[flow] = Kept(flow.request.content or b"")
        if noted is None and kept is None:
            response.stream = response.stream or True  # or a script's own stage
            return
        copy = CopiedStream(
            runtime.grafter,
            noted,
            _content_type(response),
            decompressor(_encoding(response), runtime.settings.max_answer),
        )
        if kept is not None:
            kept.received = copy.received
        self._begun(flow, copy)
        through(flow, copy)

    def response(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        way, noted = self._ways.pop(flow), self._noted.pop(flow)
        self._over(flow)
        runtime = self.lifecycle.runtime
        if runtime is None or flow.response is None:
            return None
        if way is not None and way.exchange is not None:
            noted = way.exchange
        if noted is None or not came(flow):
            return None
        body = body_of(flow.response, runtime.settings.max_answer)
        if body is None:
            if way is not None and way.exchange is not None and flow.response.data.content is not None:
                flow.response = _unusable(way.exchange, UNDECODED)  # it may hold a call
            gone(flow)
            return None
        if way is None or way.exchange is None or (way.capture is None and not concerns(way.exchange, body)):
            gone(flow)
            is_answer = noted.notes and flow.response.status_code == 200
            return note_answer(runtime.grafter, noted, _content_type(flow.response), body) if is_answer else None
        capture = way.capture or Capture(
            runtime.grafter, way.exchange, _content_type(flow.response), redaction_of(flow)
        )
        handover[flow] = capture.handed_over
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
            seen = await capture.whole(body)
        except StoreUnavailable as error:
            outcome = runtime.grafter.failure_outcome(way.route.target, b"", error)
            seen = outcome if isinstance(outcome, Reply) else body
        if isinstance(seen, Reply):
            flow.response = response_of(seen)
        elif seen != body:
            if (kept := self.kept.get(flow)) is not None:
                kept.received = bytearray(body)
            set_body(response, seen)
        gone(flow)

    def error(self, flow: http.HTTPFlow) -> None:
        self._broke_off(flow)

    def _broke_off(self, flow: http.HTTPFlow) -> None:
        """The answer has no more to come. Again does nothing."""
        way = self._ways.pop(flow)
        self._noted.pop(flow)
        stage = self._over(flow)
        if way is not None and way.capture is not None:
            handover.pop(flow)
            way.capture.hung_up()
        elif isinstance(stage, CopiedStream):
            stage.stop()

    def _begun(self, flow: http.HTTPFlow, stage: ModelStream) -> None:
        self._stages[flow] = stage
        broke_off[flow] = partial(self._broke_off, flow)
        self._streaming.add(stage)

    def _over(self, flow: http.HTTPFlow) -> ModelStream | None:
        broke_off.pop(flow)
        stage = self._stages.pop(flow)
        if stage is not None:
            self._streaming.discard(stage)
        return stage

    def _stop(self) -> None:
        """The proxy ends: of what streams the client gets no more than what is noted now."""
        for stage in list(self._streaming):
            stage.stop()

    def _let_go(self, flow: http.HTTPFlow, way: _Way) -> None:
        """As if the session had no toolset."""
        self._ways.pop(flow)
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


def _framing(route: Route, response: http.Response) -> Framing | None:
    """How an answer comes; None for one that is none of ours: an error. What is said to be neither JSON nor events may
    be either all the same: it is waited for and looked at."""
    if not replies.is_answer(response.status_code):
        return None
    kind = _content_type(response).partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return Framing.SSE
    streams = kind == "application/json" and route.target.operation is Operation.STREAM
    return Framing.ARRAY if streams else Framing.JSON


def _content_type(response: http.Response) -> str:
    return value(response.headers, b"content-type") or ""


def _encoding(response: http.Response) -> str:
    return value(response.headers, b"content-encoding") or ""


def _as_stream(flow: http.HTTPFlow) -> None:
    """The length will be another, and nothing is compressed any more."""
    assert flow.response is not None
    headers = flow.response.headers
    headers.pop("content-encoding", None)
    if headers.pop("content-length", None) is not None and not (flow.request.is_http2 or flow.request.is_http3):
        headers["transfer-encoding"] = "chunked"


def _unusable(exchange: Exchange, words: str) -> http.Response:
    return _failed(exchange.wire, words)


def _unreachable(route: Route, words: str) -> http.Response:
    return _failed(wire_of(route.target), f"the model cannot be reached: {words}")


def _failed(wire: Wire, words: str) -> http.Response:
    error = wire.error(replies.error(502, "UNAVAILABLE", f"toolgraft: {words}"))
    return response_of(Reply(502, replies.content_type("json"), error))


def response_of(reply: Reply) -> http.Response:
    return http.Response.make(reply.status, reply.body, {"content-type": reply.content_type})
