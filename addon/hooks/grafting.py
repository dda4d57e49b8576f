"""The hooks around `addon.graft`: they rewrite requests, capture answers, and never raise."""

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

from mitmproxy import flowfilter, http

from addon.core.framing import replies
from addon.core.framing.encoding import decompressor
from addon.core.summaries import Summary
from addon.graft.capture import Capture, concerns, note_answer
from addon.graft.exchange import Abandoned, Exchange, Reply
from addon.graft.session_config import SessionConfig
from addon.hooks.error_replies import (
    INTERIM,
    failed,
    interim,
    response_of,
    too_long,
    unavailable,
    unreachable,
    unsupported,
)
from addon.hooks.flow_state import FlowState
from addon.hooks.hangup import Hangup
from addon.hooks.headers import UNDECODED, body_of, ends_with_connection, put, set_body, value
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.looping import Looping
from addon.hooks.mitmproxy_patches import error_response, has_last_words, on_break, on_handover
from addon.hooks.model_streams import CopiedStream, GraftedStream
from addon.hooks.routing import Route, Routing
from addon.hooks.runtime import Runtime
from addon.hooks.secrets import redaction_of
from addon.hooks.session_configs import session_config_of
from addon.hooks.streams import (
    comes_whole,
    ended_whole,
    is_stream,
    receive_whole,
    run_later_stages,
    send_instead,
    stream_through,
)
from addon.hooks.unknown_sessions import UnknownSessions
from addon.kept_requests import Bodies
from addon.surfaces import Framing, Operation
from addon.web import tasks
from store.base import StoreUnavailable

logger = logging.getLogger("toolgraft")

_NO_URL = re.compile("[\x00-\x20\x7f\ud800-\udfff]")
"""What HTTP forbids in a URL and mitmproxy accepts: control characters, and bytes that are not UTF-8."""


ModelStream = GraftedStream | CopiedStream


@dataclass(slots=True)
class _GraftedRequest:
    """A request in flight, of a session that has a toolset, or had one, if `is_expected`. `encoding`: the client's
    Accept-Encoding. `ends_with_connection`: as `Capture` has it."""

    route: Route
    config: SessionConfig
    encoding: str | None
    is_expected: bool = False
    exchange: Exchange | None = None
    capture: Capture | None = None
    ends_with_connection: bool = False


@dataclass(slots=True)
class RecordedBodies:
    """What a recording needs of a rewritten exchange: the client's request, and the upstream's original answer."""

    sent: bytes
    received: bytearray | None = None


class Grafting:
    """`recorded` is filled only if `is_recording`. `answered_here`: flows that the proxy answers itself, by a reply or
    by a loop, whose requests to the model are separate flows. `summaries`: of the requests that could be understood."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, looping: Looping) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.looping = looping
        self.is_recording = False
        self.recorded = FlowState[RecordedBodies]("recorded")
        self.answered_here = FlowState[bool]("answered_here")
        self.summaries = FlowState[Summary]("summary")
        self._requests = FlowState[_GraftedRequest]("grafted_request")
        self._noted = FlowState[Exchange]("noted")
        self._unknown_sessions = UnknownSessions()
        self._stages = FlowState[ModelStream]("stage")
        self._streaming = WeakSet[ModelStream]()
        lifecycle.before_stop.append(self._stop)

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        route = self.routing.routes.get(flow)
        runtime = self.lifecycle.runtime
        if route is None or runtime is None or flow.response is not None:
            return None
        error_response[flow] = partial(unreachable, route.target)
        if route.target.operation is Operation.LIVE:
            return None  # the frames of a Live connection are rewritten, not its request
        return self._begin(flow, route, runtime)

    async def _begin(self, flow: http.HTTPFlow, route: Route, runtime: Runtime) -> None:
        if not runtime.ready.is_set():
            await runtime.ready.wait()  # mitmproxy listens before the tool sources have started
        expected = runtime.grafter.session_configs.expected(route.session)
        config = expected or await session_config_of(flow, route, runtime)
        if config is None:
            if route.is_named and flow.response is None:
                self._unknown_sessions.mention(route.session, runtime.store)
            return
        if _NO_URL.search(flow.request.path):
            why = "the URL holds characters that must be percent-encoded"
            self.routing.refuse(flow, 400, "INVALID_ARGUMENT", why)
            return
        self._requests[flow] = _GraftedRequest(
            route, config, put(flow.request.headers, b"accept-encoding", b"identity"), expected is not None
        )
        flow.request.stream = False  # even if a script set it: a streamed request cannot be rewritten

    def request(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        grafted = self._requests.get(flow)
        runtime = self.lifecycle.runtime
        if grafted is None or runtime is None or flow.response is not None or flow.error is not None:
            return None
        if runtime.ending:
            self._requests.pop(flow)
            self.answered_here[flow] = True
            flow.response = unavailable(grafted.route.target)
            return None
        return self._rewrite(flow, grafted, runtime)

    async def _rewrite(self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime) -> None:
        try:
            await self._graft(flow, grafted, runtime)
        except Exception as error:
            failure = runtime.grafter.failed(error, "a request could not be sent on")
            outcome = runtime.grafter.failure_outcome(grafted.route.target, b"", failure)
            if isinstance(outcome, Reply):
                self._requests.pop(flow)
                self.answered_here[flow] = True
                flow.response = response_of(outcome)
            else:
                self._pass_unchanged(flow, grafted)

    async def _graft(self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime) -> None:
        if self.lifecycle.filter is not None and not flowfilter.match(self.lifecycle.filter, flow):
            self._pass_unchanged(flow, grafted)
            return
        incoming = grafted.route.incoming(flow.request, runtime.settings.max_body)
        if incoming is None:
            self._unread(flow, grafted)
            return
        body, hangup = incoming.body, Hangup(flow.client_conn, self.routing.in_flight)
        outcome = await runtime.grafter.request(
            incoming, grafted.config, hangup=hangup.wait, is_expected=grafted.is_expected
        )
        if isinstance(outcome, Abandoned) or hangup.missed:
            if not self.routing.in_flight.is_over:
                flow.kill()
                return
            del self._requests[flow]
            self.answered_here[flow] = True
            flow.response = unavailable(grafted.route.target)
        elif isinstance(outcome, Reply):
            del self._requests[flow]
            self.answered_here[flow] = True
            flow.response = response_of(outcome)
        else:
            if outcome.summary is not None:
                self.summaries[flow] = outcome.summary
                runtime.recent.begin(outcome.summary, Bodies(incoming, outcome.body))
            if outcome.exchange is not None and self.looping.needs_loop(outcome.exchange):
                del self._requests[flow]
                self.answered_here[flow] = True
                self.looping.divert(flow, outcome.exchange, body, outcome.body)
                return
            if outcome.noted is not None:
                self._noted[flow] = outcome.noted
            if outcome.exchange is None and outcome.body is body:
                self._pass_unchanged(flow, grafted)
                return
            if self.is_recording:
                self.recorded[flow] = RecordedBodies(body)
            grafted.exchange = outcome.exchange
            if outcome.body is not body:
                set_body(flow.request, outcome.body)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        grafted = self._requests.get(flow)
        runtime = self.lifecycle.runtime
        route = self.routing.routes.get(flow)
        if route is None or runtime is None or flow.response is None:
            return
        length = value(flow.response.headers, b"content-length") or ""
        if flow.response.data.content is None and length.isdecimal() and int(length) > runtime.settings.max_answer:
            self._requests.pop(flow)
            self._noted.pop(flow)
            send_instead(flow, too_long(route.target, runtime.settings.max_answer))
            return
        if grafted is None or grafted.exchange is None:
            self._stream_untouched(flow, route, flow.response, runtime)
            return
        grafted.ends_with_connection = ends_with_connection(flow)
        framing = _framing(grafted.route, flow.response)
        if framing is None:
            del self._requests[flow]
            return
        is_whole = framing is Framing.JSON or runtime.store.suspends
        if flow.response.data.content is None and (is_whole or comes_whole(flow, runtime.settings)):
            receive_whole(flow)
            return
        if is_whole:
            return  # replayed: the whole body is present already
        grafted.capture = _capture_of(flow, flow.response, grafted, grafted.exchange, runtime)
        on_handover[flow] = grafted.capture.settle_handover
        if flow.response.data.content is not None:
            return
        bodies = self.recorded.get(flow)
        if bodies is not None:
            bodies.received = bytearray()
        decompress = decompressor(_encoding(flow.response), runtime.settings.max_answer)
        stage = GraftedStream(grafted.capture, decompress, bodies.received if bodies else None)
        self._register(flow, stage)
        stream_through(flow, stage, _as_stream, is_over=stage.is_over)

    def _stream_untouched(self, flow: http.HTTPFlow, route: Route, response: http.Response, runtime: Runtime) -> None:
        """Stream a model's answer that is not grafted to the client as it arrives. mitmproxy alone would buffer all of
        it."""
        if flow in self.answered_here or response.data.content is not None:
            return
        if not is_stream(response, asked=_framing(route, response) is not Framing.JSON):
            return
        if comes_whole(flow, runtime.settings):
            return
        noted = self._noted.pop(flow)
        bodies = self.recorded.get(flow)
        if self.is_recording and bodies is None:
            bodies = self.recorded[flow] = RecordedBodies(flow.request.content or b"")
        if noted is None and bodies is None:
            response.stream = response.stream or True  # a script's stage stays
            return
        copy = CopiedStream(
            runtime.grafter,
            noted,
            _content_type(response),
            decompressor(_encoding(response), runtime.settings.max_answer),
        )
        if bodies is not None:
            bodies.received = copy.received
        self._register(flow, copy)
        stream_through(flow, copy)

    def response(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        grafted, noted = self._requests.pop(flow), self._noted.pop(flow)
        self._unregister(flow)
        runtime = self.lifecycle.runtime
        if runtime is None or flow.response is None:
            return None
        if grafted is not None and grafted.exchange is not None:
            noted = grafted.exchange
        if (instead := self._refusal(flow, flow.response, runtime)) is not None:
            flow.response = instead
            return None
        if noted is None or not ended_whole(flow):
            return None
        body = body_of(flow.response, runtime.settings.max_answer)
        if body is None:
            if grafted is not None and grafted.exchange is not None and flow.response.data.content is not None:
                flow.response = failed(grafted.exchange.target, UNDECODED)  # it may hold a call
            run_later_stages(flow)
            return None
        if (
            grafted is None
            or grafted.exchange is None
            or not (grafted.capture or grafted.ends_with_connection or concerns(grafted.exchange, body))
        ):
            run_later_stages(flow)
            noted.summary.keep_end(body)
            is_answer = noted.notes and flow.response.status_code == 200
            return note_answer(runtime.grafter, noted, _content_type(flow.response), body) if is_answer else None
        capture = grafted.capture or _capture_of(flow, flow.response, grafted, grafted.exchange, runtime)
        on_handover[flow] = _settles_later(capture) if runtime.store.suspends else capture.settle_handover
        return self._capture(flow, flow.response, grafted, runtime, capture, body)

    def _refusal(self, flow: http.HTTPFlow, response: http.Response, runtime: Runtime) -> http.Response | None:
        """What the client gets instead of an answer that is here whole, if it cannot have that."""
        route, content, most = self.routing.routes.get(flow), response.data.content, runtime.settings.max_answer
        if route is None or content is None or flow in self.answered_here:
            return None
        if self.routing.in_flight.is_over:
            return unavailable(route.target)  # the answer may be cut off
        if response.status_code in INTERIM:
            return interim(route.target, response.status_code)
        return too_long(route.target, most) if len(content) > most else None

    async def _capture(
        self,
        flow: http.HTTPFlow,
        response: http.Response,
        grafted: _GraftedRequest,
        runtime: Runtime,
        capture: Capture,
        body: bytes,
    ) -> None:
        try:
            visible = await capture.whole(body)
        except StoreUnavailable as error:
            outcome = runtime.grafter.failure_outcome(grafted.route.target, b"", error)
            visible = outcome if isinstance(outcome, Reply) else body
        if isinstance(visible, Reply):
            flow.response = response_of(visible)
        elif visible != body:
            if (bodies := self.recorded.get(flow)) is not None:
                bodies.received = bytearray(body)
            set_body(response, visible)
        run_later_stages(flow)

    def error(self, flow: http.HTTPFlow) -> None:
        self._broke_off(flow)

    def _broke_off(self, flow: http.HTTPFlow) -> None:
        """Nothing more of the answer will come. Safe to call twice."""
        grafted = self._requests.pop(flow)
        self._noted.pop(flow)
        stage = self._unregister(flow)
        if grafted is not None and grafted.capture is not None:
            on_handover.pop(flow)
            grafted.capture.on_hangup()
        elif isinstance(stage, CopiedStream):
            stage.stop()

    def _register(self, flow: http.HTTPFlow, stage: ModelStream) -> None:
        self._stages[flow] = stage
        on_break[flow] = partial(self._broke_off, flow)
        if isinstance(stage, GraftedStream):
            has_last_words[flow] = stage.has_last_words
        self._streaming.add(stage)

    def _unregister(self, flow: http.HTTPFlow) -> ModelStream | None:
        on_break.pop(flow)
        has_last_words.pop(flow)
        stage = self._stages.pop(flow)
        if stage is not None:
            self._streaming.discard(stage)
        return stage

    async def _stop(self) -> None:
        """The proxy ends: clients get no more of their streams than is noted now, and who still waits is told."""
        for stage in list(self._streaming):
            stage.stop()
        await self.routing.in_flight.cut_off(self.answered_here)

    def _unread(self, flow: http.HTTPFlow, grafted: _GraftedRequest) -> None:
        """The request's body cannot be read."""
        encoding = _encoding(flow.request)
        if decompressor(encoding) is not None:
            self._pass_unchanged(flow, grafted)
            return
        del self._requests[flow]
        self.answered_here[flow] = True
        flow.response = unsupported(grafted.route.target, encoding)

    def _pass_unchanged(self, flow: http.HTTPFlow, grafted: _GraftedRequest) -> None:
        """Treat the request as if the session had no toolset."""
        self._requests.pop(flow)
        if flow in self._noted:  # the answer will be read
            return
        if grafted.encoding is None:
            flow.request.headers.pop("accept-encoding", None)
        else:
            flow.request.headers["accept-encoding"] = grafted.encoding


def _settles_later(capture: Capture) -> Callable[[bool], None]:
    def settle(whole: bool) -> None:
        tasks.spawn(capture.settle(whole), name="the handover of an answer")

    return settle


def _capture_of(
    flow: http.HTTPFlow, response: http.Response, grafted: _GraftedRequest, exchange: Exchange, runtime: Runtime
) -> Capture:
    return Capture(
        runtime.grafter,
        exchange,
        _content_type(response),
        redaction_of(flow),
        ends_with_connection=grafted.ends_with_connection,
    )


def _framing(route: Route, response: http.Response) -> Framing | None:
    """How the answer is framed; None for an error, which is not rewritten. A content type that is neither JSON nor an
    event stream may be wrong, so such an answer is buffered and inspected."""
    if not replies.is_answer(response.status_code):
        return None
    kind = _content_type(response).partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return Framing.SSE
    streams = kind == "application/json" and route.target.operation is Operation.STREAM
    return Framing.ARRAY if streams else Framing.JSON


def _content_type(response: http.Response) -> str:
    return value(response.headers, b"content-type") or ""


def _encoding(message: http.Message) -> str:
    return value(message.headers, b"content-encoding") or ""


def _as_stream(flow: http.HTTPFlow) -> None:
    """Adapt the headers: the length will change, and the body is no longer compressed."""
    assert flow.response is not None
    headers = flow.response.headers
    headers.pop("content-encoding", None)
    if headers.pop("content-length", None) is not None and not (flow.request.is_http2 or flow.request.is_http3):
        headers["transfer-encoding"] = "chunked"
