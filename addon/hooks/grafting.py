"""The hooks around `addon.graft`: they rewrite requests, capture answers, and never raise."""

import contextlib
import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial

from mitmproxy import http

from addon.core.framing import replies
from addon.core.framing.streams import BadEncoding, Decompress, decompressor
from addon.core.history.own_signatures import without_own_signatures
from addon.core.summaries import Summary
from addon.graft.exchange import Abandoned, Exchange, Forward, Reply
from addon.graft.machine_shell import Capture, concerns
from addon.graft.session_config import SessionConfig
from addon.hooks.delivered import Delivered, Delivery, answered_here, deliveries
from addon.hooks.draining import Hangup
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.looping import Looping
from addon.hooks.messages import (
    INTERIM,
    UNDECODED,
    FlowState,
    body_of,
    ends_with_connection,
    failed,
    interim,
    put,
    response_of,
    set_body,
    too_long,
    unavailable,
    unreachable,
    unsupported,
    value,
)
from addon.hooks.mitmproxy_patches import error_response, on_handover
from addon.hooks.routing import Route, Routing, UnknownSessions, session_config_of
from addon.hooks.runtime import Runtime
from addon.hooks.secrets import redaction_of
from addon.hooks.streams import comes_whole, is_stream, pass_whole, receive_whole, send_instead
from addon.monitoring.recent_requests import Bodies
from addon.surfaces.incoming import Incoming, Operation
from addon.web import tasks
from store.base import StoreUnavailable

logger = logging.getLogger("toolgraft")

_NO_URL = re.compile("[\x00-\x20\x7f\ud800-\udfff]")
"""Characters that HTTP forbids in a URL and mitmproxy accepts: control characters, and bytes that are not UTF-8."""


@dataclass(slots=True)
class _GraftedRequest:
    """A request in flight, of a session that has a toolset, or had one at the last read if `is_expected`. `encoding`:
    the client's Accept-Encoding. `ends_with_connection`: as in `Capture`."""

    route: Route
    config: SessionConfig
    encoding: str | None
    is_expected: bool = False
    exchange: Exchange | None = None
    ends_with_connection: bool = False


@dataclass(slots=True)
class RecordedBodies:
    """The bodies for recording a rewritten exchange: the client's request, and the upstream's original answer."""

    sent: bytes
    received: bytearray | None = None


class Grafting:
    """`recorded` is filled only if `is_recording`. `summaries`: of the requests that could be understood."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, looping: Looping) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.looping = looping
        self.is_recording = False
        self.recorded = FlowState[RecordedBodies]("recorded")
        self.summaries = FlowState[Summary]("summary")
        self._requests = FlowState[_GraftedRequest]("grafted_request")
        self._noted = FlowState[Exchange]("noted")
        self._unknown_sessions = UnknownSessions()
        lifecycle.before_stop.append(self._stop)

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        route = self.routing.routes.get(flow)
        runtime = self.lifecycle.runtime
        if route is None or runtime is None:
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
        if runtime is None or flow.error is not None:
            return None
        if grafted is None:
            if flow.response is None and self.routing.routes.get(flow) is not None:
                _remove_own_signatures(flow, runtime)
            return None
        if flow.response is not None:  # another addon has answered
            self._ungrafted(flow, grafted, runtime)
            return None
        if runtime.ending:
            self._answer(flow, unavailable(grafted.route.target))
            return None
        return self._rewrite(flow, grafted, runtime)

    async def _rewrite(self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime) -> None:
        try:
            await self._graft(flow, grafted, runtime)
        except Exception as error:
            failure = runtime.grafter.failed(error, "a request could not be sent on")
            outcome = runtime.grafter.failure_outcome(grafted.route.target, b"", failure)
            if isinstance(outcome, Reply):
                self._answer(flow, response_of(outcome))
            else:
                self._pass_unchanged(flow, grafted)

    async def _graft(self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime) -> None:
        if self.lifecycle.filters_out(flow):
            _remove_own_signatures(flow, runtime)
            self._ungrafted(flow, grafted, runtime)
            return
        incoming = grafted.route.incoming(flow.request, runtime.settings)
        if incoming is None:
            self._unread(flow, grafted, runtime)
            return
        hangup = Hangup(flow.client_conn, self.routing.in_flight)
        outcome = await runtime.grafter.request(
            incoming, grafted.config, hangup=hangup.wait, is_expected=grafted.is_expected
        )
        if isinstance(outcome, Abandoned) or hangup.missed:
            if not self.routing.in_flight.is_over:
                flow.kill()
                return
            self._answer(flow, unavailable(grafted.route.target))
        elif isinstance(outcome, Reply):
            self._answer(flow, response_of(outcome))
        else:
            self._forward(flow, grafted, runtime, incoming, outcome)

    def _forward(
        self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime, incoming: Incoming, outcome: Forward
    ) -> None:
        exchange, body = outcome.exchange or outcome.noted, incoming.body
        _note_delivery(flow, runtime, exchange)
        if outcome.summary is not None:
            self.summaries[flow] = outcome.summary
            runtime.recent.begin(outcome.summary, Bodies(incoming, outcome.body))
            if exchange is not None and self.looping.needs_runner(exchange):
                del self._requests[flow]
                self.looping.divert(flow, exchange, body, outcome.body)
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
        exchange = grafted.exchange if grafted is not None else None
        if exchange is None and flow not in self._noted:
            self._stream_untouched(flow, route, flow.response, runtime)
            return
        if not replies.is_answer(flow.response.status_code):
            self._requests.pop(flow)
            self._noted.pop(flow)
            return
        if grafted is not None:
            grafted.ends_with_connection = ends_with_connection(flow)
        if flow.response.data.content is None:  # otherwise it is replayed
            receive_whole(flow)

    def _stream_untouched(self, flow: http.HTTPFlow, route: Route, response: http.Response, runtime: Runtime) -> None:
        """Stream a model's ungrafted answer to the client as it arrives. mitmproxy alone would buffer it."""
        if flow in answered_here or response.data.content is not None:
            return
        if not is_stream(response, asked=route.target.operation is Operation.STREAM):
            return
        if comes_whole(flow, runtime.settings):
            return
        if self.is_recording and not callable(response.stream):
            bodies = self.recorded[flow] = RecordedBodies(flow.request.content or b"", bytearray())
            response.stream = partial(_recorded, bodies, decompressor(_encoding(response), runtime.settings.max_answer))
        response.stream = response.stream or True  # a script's callable stays

    def response(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        grafted, noted = self._requests.pop(flow), self._noted.pop(flow)
        runtime = self.lifecycle.runtime
        if runtime is None or flow.response is None:
            return None
        if grafted is not None and grafted.exchange is not None:
            noted = grafted.exchange
        if (instead := self._refusal(flow, flow.response, runtime)) is not None:
            flow.response = instead
            return None
        if noted is None:
            return None
        body = body_of(flow.response, runtime.settings.max_answer)
        if body is None:
            if flow.response.data.content is not None:
                flow.response = failed(noted.target, UNDECODED)  # it may hold a call, and cannot be noted
            pass_whole(flow)
            return None
        if (
            grafted is None
            or grafted.exchange is None
            or not (grafted.ends_with_connection or concerns(grafted.exchange, body))
        ):
            pass_whole(flow)
            noted.summary.keep_end(body)
            return None
        capture = Capture(
            runtime.grafter,
            grafted.exchange,
            _content_type(flow.response),
            redaction_of(flow),
            ends_with_connection=grafted.ends_with_connection,
        )
        on_handover[flow] = partial(_settle_later, capture)
        return self._capture(flow, flow.response, grafted, runtime, capture, body)

    def _refusal(self, flow: http.HTTPFlow, response: http.Response, runtime: Runtime) -> http.Response | None:
        """The error that replaces a complete answer, if the client may not have that answer."""
        route, content, most = self.routing.routes.get(flow), response.data.content, runtime.settings.max_answer
        if route is None or content is None or flow in answered_here:
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
        except Exception as error:  # the answer may hold a call
            flow.response = failed(grafted.route.target, str(runtime.grafter.failed(error)))
            return
        if isinstance(visible, Reply):
            flow.response = response_of(visible)
        elif visible != body:
            if (bodies := self.recorded.get(flow)) is not None:
                bodies.received = bytearray(body)
            set_body(response, visible)
        pass_whole(flow)

    def running(self) -> None:
        Delivered.install()

    def error(self, flow: http.HTTPFlow) -> None:
        self._requests.pop(flow)
        self._noted.pop(flow)

    async def _stop(self) -> None:
        """End the requests of clients that still wait, because the proxy ends."""
        await self.routing.in_flight.cut_off(answered_here)

    def _unread(self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime) -> None:
        """Handle a request whose body cannot be decompressed."""
        encoding, target = _encoding(flow.request), grafted.route.target
        if decompressor(encoding) is None:
            self._answer(flow, unsupported(target, encoding))
            return
        why = f"it does not fit its content encoding, or has more than {runtime.settings.max_body} bytes then"
        outcome = runtime.grafter.unread_outcome(target, b"", why)
        if isinstance(outcome, Reply):
            self._answer(flow, response_of(outcome))
        else:
            self._pass_unchanged(flow, grafted)

    def _ungrafted(self, flow: http.HTTPFlow, grafted: _GraftedRequest, runtime: Runtime) -> None:
        """Handle a request that another addon answers, or that `graft_filter` excludes: its answer is noted."""
        incoming = grafted.route.incoming(flow.request, runtime.settings)
        exchange = None if incoming is None else runtime.grafter.ungrafted(incoming, grafted.config)
        _note_delivery(flow, runtime, exchange)
        self._pass_unchanged(flow, grafted)

    def _answer(self, flow: http.HTTPFlow, response: http.Response) -> None:
        """Answer the request instead of its upstream."""
        self._requests.pop(flow)
        answered_here[flow] = True
        flow.response = response

    def _pass_unchanged(self, flow: http.HTTPFlow, grafted: _GraftedRequest) -> None:
        """Treat the request as if the session had no toolset."""
        self._requests.pop(flow)
        if flow in self._noted:  # the answer will be read
            return
        if grafted.encoding is None:
            flow.request.headers.pop("accept-encoding", None)
        else:
            flow.request.headers["accept-encoding"] = grafted.encoding


def _remove_own_signatures(flow: http.HTTPFlow, runtime: Runtime) -> None:
    """Remove signatures of the proxy from a request that passes unread: a chat may go on in another session."""
    body = flow.request.data.content
    if body and (new := without_own_signatures(body, runtime.store.secret)) is not body:
        set_body(flow.request, new)


def _note_delivery(flow: http.HTTPFlow, runtime: Runtime, exchange: Exchange | None) -> None:
    if exchange is not None and exchange.notes:
        deliveries[flow] = Delivery(runtime.grafter, exchange)


def _settle_later(capture: Capture, whole: bool) -> None:
    tasks.spawn(capture.settle(whole), name="the handover of an answer")


def _recorded(bodies: RecordedBodies, decompress: Decompress | None, chunk: bytes) -> bytes:
    """Copies a stream, decompressed if possible, and passes it on as it arrives."""
    if bodies.received is not None and decompress is not None:
        with contextlib.suppress(BadEncoding):
            bodies.received += decompress(chunk)
    return chunk


def _content_type(response: http.Response) -> str:
    return value(response.headers, b"content-type") or ""


def _encoding(message: http.Message) -> str:
    return value(message.headers, b"content-encoding") or ""
