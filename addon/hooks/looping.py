"""Flows that need a tool loop: once every addon has seen the request, a loop answers it instead of the upstream."""

from dataclasses import dataclass

from mitmproxy import connection, http
from mitmproxy.addons.serverplayback import ServerPlayback

from addon.core.framing.documents import Malformed
from addon.graft.exchange import Exchange
from addon.hooks.handover import handover, lost
from addon.hooks.headers import body_of, host_of, set_body, url_of
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.onward import check, way
from addon.hooks.perflow import PerFlow
from addon.hooks.routing import Routing
from addon.hooks.shadow_flows import NOT_SENT, LoopClient, Origin, ShadowFlows, netloc
from addon.hooks.streams import came, comes_whole, gone, is_stream, through, whole
from addon.hooks.upstream_pool import Clients
from addon.loop.runner import Runner
from addon.loop.server import LoopAnswer
from addon.loop.upstream import Address, Upstream
from addon.surfaces import Framing, Operation


@dataclass(slots=True)
class _Diverted:
    """What a loop begins with. `client`: the client's own body; `grafted`: what was made of it."""

    exchange: Exchange
    client: bytes
    grafted: bytes


diverted = PerFlow[_Diverted]("diverted")

check(ServerPlayback, "request")
_replay = ServerPlayback.request


def request(self: ServerPlayback, f: http.HTTPFlow) -> None:
    """As mitmproxy's `--server-replay`, but for a flow that a loop answers. A recording stands in for the upstream, and
    what goes upstream are the requests of the loop: their flows are asked for. The client's would be given the answer
    to the first of them, or be killed for not having been recorded."""
    if f not in diverted:
        _replay(self, f)


ServerPlayback.request = request  # type: ignore[method-assign]


class _Kept:
    """Passes a stream on, and keeps it."""

    def __init__(self) -> None:
        self.body = bytearray()

    def __call__(self, chunk: bytes) -> list[bytes]:
        self.body += chunk
        return [chunk] if chunk else []


class Looping:
    """Stands behind the grafting, which hands it the requests whose calls the proxy may run."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing, shadow_flows: ShadowFlows, clients: Clients) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self.shadow_flows = shadow_flows
        self.clients = clients
        self._streams = PerFlow[bool]("streams")
        self._kept = PerFlow[_Kept]("kept_stream")

    def wants(self, exchange: Exchange) -> bool:
        """Whether the request may lead to calls that the proxy runs, or its answer has to be written anew anyway."""
        runtime = self.lifecycle.runtime
        if runtime is not None and not exchange.wire.native:
            return True
        if runtime is None or exchange.config.delivery not in ("auto", "loop"):
            return False
        if exchange.target.operation not in (Operation.GENERATE, Operation.STREAM) or (
            exchange.resumes is not None and exchange.resumes.has_calls
        ):
            return False  # an answer with calls that are not a loop's is ended without one
        return any(runtime.executors.can_run(exchange.config, name) for name in exchange.plan.names)

    def divert(self, flow: http.HTTPFlow, exchange: Exchange, client: bytes, grafted: bytes) -> None:
        """Let a loop answer the flow, from what the flow holds when every addon has seen it: other addons may change
        it until then, or answer it themselves. `client`: the body as the client sent it."""
        set_body(flow.request, grafted)
        diverted[flow] = _Diverted(exchange, client, grafted)
        way[flow] = self._begin

    def _begin(self, flow: http.HTTPFlow) -> LoopAnswer | http.Request | None:
        """The loop of a diverted flow; it is sent to the upstream where its body is no request any more."""
        begins, runtime = diverted.pop(flow), self.lifecycle.runtime
        body = None if runtime is None else body_of(flow.request, runtime.settings.max_body)
        if begins is None or runtime is None or body is None:
            return self.routing.elsewhere(flow)
        exchange, address = begins.exchange, _address(flow.request)
        streams = exchange.target.framing is not Framing.JSON
        origin = Origin(exchange.config.session, begins.client)
        loop_client = LoopClient(flow.client_conn, origin, streams, flow.server_conn.via)
        upstream = Upstream(self.clients.of, self.shadow_flows.of(loop_client))
        try:
            runner = Runner(runtime.grafter, runtime.executors, upstream, exchange, address, body)
        except Malformed as error:
            runtime.grafter.warn(f"a request that another addon changed was sent as it is: {error}")
            return self.routing.elsewhere(flow)
        self._streams[flow] = streams
        # the requests to the model are flows of their own: this one is the client's, but for what others changed in it
        if body == begins.grafted:
            set_body(flow.request, begins.client)
        there = flow.request.host, flow.request.port
        if flow.server_conn.address != there:
            flow.server_conn = connection.Server(address=there)
        answering = runtime.loops.answer(
            runner, lambda: not flow.live, lambda: flow.response is not None and bool(flow.response.stream)
        )
        handover[flow] = answering.handed_over
        return answering

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        diverted.pop(flow)  # another addon has answered
        streams, runtime = self._streams.pop(flow), self.lifecycle.runtime
        if streams is None or flow.response is None or runtime is None or not is_stream(flow.response, asked=streams):
            return
        if comes_whole(flow, runtime.settings):
            whole(flow)
        else:
            self._kept[flow] = _Kept()
            through(flow, self._kept[flow], last=True)

    def response(self, flow: http.HTTPFlow) -> None:
        kept = self._kept.pop(flow)
        if came(flow):
            gone(flow)
        elif kept is not None and flow.response is not None:
            flow.response.data.content = bytes(kept.body)  # for whoever shows or writes the flow

    def error(self, flow: http.HTTPFlow) -> None:
        lost(flow)
        diverted.pop(flow)
        self._streams.pop(flow)
        self._kept.pop(flow)


def _address(request: http.Request) -> Address:
    """Where the loop's requests go, with what headers: those of the client's, but for what its body needs."""
    not_sent = NOT_SENT | {b"host", b"content-encoding"}
    fields = [field for field in request.headers.fields if field[0].lower() not in not_sent]
    url, host = url_of(request), host_of(request)
    if host and host != netloc(url):
        fields.insert(0, (b"Host", host.encode("utf-8", "surrogateescape")))
    return Address(request.method, url, tuple(fields))
