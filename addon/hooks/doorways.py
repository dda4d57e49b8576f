"""The way out of the front doors: the pooled clients, and each request shown to mitmproxy as a flow of its own."""

import time

from mitmproxy import connection, ctx
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy.mode_specs import ProxyMode, UpstreamMode

from addon.doors.outward import Caller
from addon.hooks.clients import Clients, proxy_of
from addon.hooks.watching import Watching
from addon.loop.upstream import Address, Upstream


class Doorways:
    """`addon.doors.outward.Outward` as mitmproxy has it."""

    def __init__(self, watching: Watching, clients: Clients) -> None:
        self.watching = watching
        self.clients = clients
        self._proxy = ""

    def configure(self, updated: set[str]) -> None:
        if "mode" in updated:
            modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
            self._proxy = next((proxy_of(mode) for mode in modes if isinstance(mode, UpstreamMode)), "")

    def upstream(self, caller: Caller, address: Address, sent: bytes) -> Upstream:
        # no connection of mitmproxy's own leads to a door: one is made up, for whoever asks a flow where it came from
        client = connection.Client(
            peername=caller.address,
            sockname=("127.0.0.1", 0),
            state=ConnectionState.OPEN,
            timestamp_start=time.time(),
        )
        http = self.clients.to(address.to or address.url, self._proxy if address.to is None else "")
        # a door keeps its caller's tools whatever its session does: files of -w tell a replay so as well
        metadata = {"session": caller.session, "client_tools": "keep"}
        return Upstream(http, self.watching.of(client, caller.session, sent, metadata))
