"""Shorter versions of what mitmproxy's layers do with each event, which they hand from one to the next."""

from collections.abc import Generator
from typing import Any

from mitmproxy.connection import Connection
from mitmproxy.proxy.commands import Command, ConnectionCommand, OpenConnection, RequestWakeup, SendData
from mitmproxy.proxy.events import ConnectionEvent, DataReceived, Event, Start
from mitmproxy.proxy.layer import Layer, NextLayer, Paused
from mitmproxy.proxy.layers.http import (
    DropStream,
    GetHttpConnection,
    HttpLayer,
    RegisterHttpConnection,
    SendHttp,
)
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import RequestHeaders
from mitmproxy.proxy.layers.tls import ServerTLSLayer
from mitmproxy.proxy.tunnel import TunnelLayer, TunnelState

from addon.hooks.shortcuts import Method, Shortcut

Commands = Generator[Command, Any]


def handles_events(handle_any: Method) -> Method:
    """Takes a layer's commands in a loop, which costs half of what `next` and its exception do."""

    def handle_event(self: Layer, event: Event) -> Commands:
        if self._paused or self.debug is not None:
            yield from handle_any(self, event)
            return
        generator = self._handle_event(event)
        for command in generator:
            if command.blocking is True:
                command.blocking = self
                self._paused = Paused(command, generator)
                yield command
                return
            yield command

    return handle_event


def hands_on(_: Method) -> Method:
    """Looks for the most frequent commands first."""

    def event_to_child(self: HttpLayer, child: Layer, event: Event) -> Commands:
        for command in child.handle_event(event):
            if type(command) is SendData:
                yield command
            elif type(command) is SendHttp:
                yield from self.event_to_child(self.connections[command.connection], command.event)
            elif type(command) is ReceiveHttp:
                received = command.event
                if isinstance(received, RequestHeaders):
                    yield from self.make_stream(received.stream_id)
                if (stream := self.streams.get(received.stream_id)) is not None:
                    yield from self.event_to_child(stream, received)
            else:
                yield from _handle_command(self, child, command)

    return event_to_child


def _handle_command(layer: HttpLayer, child: Layer, command: Command) -> Commands:
    assert isinstance(command, Command)
    if command.blocking or isinstance(command, RequestWakeup):
        layer.command_sources[command] = child
    if isinstance(command, DropStream):
        layer.streams.pop(command.stream_id, None)
    elif isinstance(command, GetHttpConnection):
        yield from layer.get_connection(command)
    elif isinstance(command, RegisterHttpConnection):
        yield from layer.register_connection(command)
    else:
        if isinstance(command, OpenConnection):
            layer.connections[command.connection] = child
        yield command


def finds_connection(handle_any: Method) -> Method:
    """Hands what a connection has received to its layer, without asking first what else it may be."""

    def handle(self: HttpLayer, event: Event) -> Commands:
        if type(event) is DataReceived and (found := self.connections.get(event.connection)) is not None:
            return self.event_to_child(found, event)
        return handle_any(self, event)  # type: ignore[no-any-return]

    return handle


def skips_decided(handle_any: Method) -> Method:
    """Leaves out a layer that has decided who comes next."""

    def handle(self: NextLayer, event: Event) -> Commands:
        return handle_any(self, event) if self._handle is None else self._handle(event)

    return handle


def skips_modes(handle_any: Method) -> Method:
    """Leaves out the layer of a proxy's mode once it only hands on. What the layer below yields never blocks this
    one."""

    def handle(self: Layer, event: Event) -> Commands:
        below: Any = vars(self).get("_handle_event")
        if self._paused is None and self.debug is None and type(getattr(below, "__self__", None)) is NextLayer:
            return below(event)  # type: ignore[no-any-return]
        return handle_any(self, event)  # type: ignore[no-any-return]

    return handle


def passes_tunnels(handle_any: Method) -> Method:
    """Hands on what concerns only the layer below, and what has arrived through an open tunnel."""

    def handle(self: TunnelLayer, event: Event) -> Commands:
        if type(event) is DataReceived:
            if self.tunnel_state is not TunnelState.ESTABLISHING:
                is_own = _are_same(event.connection, self.tunnel_connection)
                return self.receive_data(event.data) if is_own else self.event_to_child(event)
        elif not isinstance(event, (Start, ConnectionEvent)):
            return self.event_to_child(event)
        return handle_any(self, event)  # type: ignore[no-any-return]

    return handle


def leaves_tunnels(hand_on_any: Method) -> Method:
    """Yields commands that do not concern the tunnel without another generator for each."""

    def event_to_child(self: TunnelLayer, event: Event) -> Commands:
        if self.tunnel_state is TunnelState.ESTABLISHING and not self.command_to_reply_to:
            yield from hand_on_any(self, event)
            return
        for command in self.child_layer.handle_event(event):
            if isinstance(command, ConnectionCommand) and _are_same(command.connection, self.conn):
                yield from self._handle_command(command)
            else:
                yield command

    return event_to_child


def skips_greeted(hand_on_any: Method) -> Method:
    """Leaves out a generator once the client's TLS is known."""

    def event_to_child(self: ServerTLSLayer, event: Event) -> Commands:
        if self.wait_for_clienthello:
            return hand_on_any(self, event)  # type: ignore[no-any-return]
        return TunnelLayer.event_to_child(self, event)

    return event_to_child


def _are_same(one: Connection, other: Connection) -> bool:
    return one is other or one.id == other.id


_HTTP = "mitmproxy.proxy.layers.http:HttpLayer."
_LAYER = "mitmproxy.proxy.layer:"
_MODES = "mitmproxy.proxy.layers.modes:"
_TUNNEL = "mitmproxy.proxy.tunnel:TunnelLayer."
_SAME = "mitmproxy.connection:Connection.__eq__"

LAYER_SHORTCUTS = (
    Shortcut(handles_events, "fd88b0fb09ceddbb", _LAYER + "Layer.handle_event"),
    Shortcut(hands_on, "1095f6e1581d1780", _HTTP + "event_to_child"),
    Shortcut(finds_connection, "712a6f9ed99a6536", _HTTP + "_handle_event", _HTTP + "event_to_child"),
    Shortcut(skips_decided, "97ad4f9082151f56", _LAYER + "NextLayer.handle_event", _LAYER + "NextLayer._ask"),
    Shortcut(
        skips_modes,
        "9195661dcff02102",
        _MODES + "ReverseProxy.handle_event",
        *(_MODES + name for name in ("ReverseProxy._handle_event", "DestinationKnown.finish_start")),
        _LAYER + "Layer.handle_event",
    ),
    Shortcut(
        skips_modes,
        "b986661f0cee607e",
        *(_MODES + name for name in ("HttpProxy.handle_event", "HttpProxy._handle_event")),
        _LAYER + "Layer.handle_event",
    ),
    Shortcut(passes_tunnels, "0d93dca7711aa34f", _TUNNEL + "_handle_event", _SAME),
    Shortcut(leaves_tunnels, "80d17159410481da", _TUNNEL + "event_to_child", _TUNNEL + "_handle_command", _SAME),
    Shortcut(skips_greeted, "72ccc54bbf633c15", "mitmproxy.proxy.layers.tls:ServerTLSLayer.event_to_child"),
)
