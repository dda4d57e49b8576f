"""Lets a loop answer the flows that need one, after every addon has seen the request."""

from dataclasses import dataclass

from mitmproxy import http
from mitmproxy.connection import Server

from addon.core.framing.documents import Malformed
from addon.graft.exchange import Exchange
from addon.hooks.delivered import answered_here
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.messages import FlowState, body_of, changed, host_of, set_body, unavailable, url_of
from addon.hooks.mitmproxy_patches import choose_destination, diverted, handover_failed, on_handover
from addon.hooks.runtime import Runtime
from addon.hooks.streams import comes_whole, is_stream
from addon.hooks.upstream_flows import NOT_SENT, LoopWatcher, Origin, ShadowFlows, UpstreamPool, netloc
from addon.loop.runner import Head, Runner
from addon.loop.server import LoopAnswer
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Framing, Operation


@dataclass(slots=True)
class _Diverted:
    """The state for starting a loop. `client`: the body as the client sent it. `grafted`: the rewritten body."""

    exchange: Exchange
    client: bytes
    grafted: bytes


class Looping:
    """Receives requests from the grafting whose calls the proxy may run."""

    def __init__(self, lifecycle: Lifecycle, shadow_flows: ShadowFlows, pool: UpstreamPool) -> None:
        self.lifecycle = lifecycle
        self.shadow_flows = shadow_flows
        self.pool = pool
        self._answers = FlowState[LoopAnswer]("loop_answer")

    def needs_runner(self, exchange: Exchange) -> bool:
        """Whether the answer is a stream, is converted to another format, or may hold calls that the proxy runs. A
        request without grafted tools needs the Runner only for a stream."""
        runtime = self.lifecycle.runtime
        if runtime is None:
            return False
        if exchange.target.operation is Operation.STREAM:
            return True
        if not exchange.plan.grafts or exchange.target.operation is not Operation.GENERATE:
            return False
        if not exchange.wire.native:
            return True
        if not exchange.config.loops:
            return False
        if exchange.resumes is not None and exchange.resumes.has_calls:
            return False  # an answer with calls that no loop runs is completed without a loop
        return any(runtime.executors.can_run(exchange.config, name) for name in exchange.plan.names)

    def divert(self, flow: http.HTTPFlow, exchange: Exchange, client: bytes, grafted: bytes) -> None:
        """Let a loop answer the flow after every addon has seen it. Until then other addons may change the flow, or
        answer it themselves. `client`: the body as the client sent it."""
        set_body(flow.request, grafted)
        diverted[flow] = _Diverted(exchange, client, grafted)
        choose_destination[flow] = self._begin
        answered_here[flow] = True

    def _begin(self, flow: http.HTTPFlow) -> LoopAnswer:
        """The loop of a diverted flow, or an error if its body is no longer a valid request."""
        runtime = self.lifecycle.runtime
        start: _Diverted | None = diverted.pop(flow)
        if start is None or runtime is None:
            return _complete(unavailable(start.exchange.target if start is not None else None))
        exchange, address = start.exchange, _address(flow.request)
        body = body_of(flow.request, runtime.settings.max_body)
        if body is None:
            return self._refused(runtime, exchange, "its body is too long, or does not fit its content encoding")
        streams = exchange.target.framing is not Framing.JSON
        origin = Origin(exchange.config.session, start.client)
        watcher = LoopWatcher(self.shadow_flows, flow.client_conn, origin, streams, flow.server_conn.via)
        upstream = Upstream(self.pool.connections_for, watcher)
        is_changed = body != start.grafted
        try:
            if is_changed:
                exchange.wire.read(body)  # the grafter writes valid requests
            runner = Runner(runtime.grafter, runtime.executors, upstream, exchange, address, body)
        except Malformed as error:
            return self._refused(runtime, exchange, str(error))
        # the requests to the model are separate flows; this one shows the client's body, unless an addon changed it
        if not is_changed:
            set_body(flow.request, start.client)
        address_in_url = flow.request.host, flow.request.port
        if flow.server_conn.address != address_in_url:
            flow.server_conn = Server(address=address_in_url)
        answering = runtime.loops.answer(
            runner,
            lambda: not flow.live,
            lambda: flow.response is not None and bool(flow.response.stream),
            keeps=streams,
        )
        self._answers[flow] = answering
        on_handover[flow] = answering.settle_handover
        return answering

    def _refused(self, runtime: Runtime, exchange: Exchange, why: str) -> LoopAnswer:
        runtime.grafter.warn(f"another addon made a request unreadable, which was refused: {why}")
        return _complete(changed(exchange.target, why))

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        diverted.pop(flow)  # another addon has answered
        answering, runtime = self._answers.get(flow), self.lifecycle.runtime
        if answering is None or flow.response is None or runtime is None:
            return
        if is_stream(flow.response, asked=answering.kept is not None) and not comes_whole(flow, runtime.settings):
            flow.response.stream = flow.response.stream or True  # a script's callable stays

    def response(self, flow: http.HTTPFlow) -> None:
        answering = self._answers.pop(flow)
        if answering is None or answering.kept is None or flow.response is None:
            return
        if flow.response.data.content is None and not callable(flow.response.stream):
            flow.response.data.content = b"".join(answering.kept)  # for addons that show or write the flow

    def error(self, flow: http.HTTPFlow) -> None:
        handover_failed(flow)
        diverted.pop(flow)
        self._answers.pop(flow)


def _complete(response: http.Response) -> LoopAnswer:
    fields = [field for field in response.headers.fields if field[0].lower() != b"content-length"]
    return LoopAnswer.complete(Head(response.status_code, fields), response.data.content or b"")


def _address(request: http.Request) -> Address:
    """The URL and the headers of the loop's requests: the client's headers, except those that describe its body."""
    not_sent = NOT_SENT | {b"host", b"content-encoding"}
    fields = [field for field in request.headers.fields if field[0].lower() not in not_sent]
    url, host = url_of(request), host_of(request)
    if host and host != netloc(url):
        fields.insert(0, (b"Host", host.encode("utf-8", "surrogateescape")))
    return Address(request.method, url, tuple(fields))
