"""Connects the front doors to the model: through the pooled connections, with each request as a flow of mitmproxy."""

import time

from mitmproxy import ctx
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.net import server_spec
from mitmproxy.proxy.mode_specs import ProxyMode, UpstreamMode

from addon.gateway.engine import Caller
from addon.hooks.shadow_flows import LoopClient, Origin, ShadowFlows
from addon.hooks.upstream_pool import UpstreamPool
from addon.loop.upstream import Upstream


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
        loop_client = LoopClient(client, Origin(caller.session, sent), streams, self._via, metadata)
        return Upstream(self.pool.connections_for, self.shadow_flows.of(loop_client))
