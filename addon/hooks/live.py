"""WebSockets of the Live API. `addon.loop.live` decides whether each frame passes, changes or is dropped.

A message that is too long ends the connection. The proxy's own frames are injected, and mitmproxy runs the hook for
them too, with `injected` set.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mitmproxy import ctx, http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.websocket import (
    Fragmentizer,
    WebsocketEndHook,
    WebsocketLayer,
    WebsocketMessageHook,
    WebSocketMessageInjected,
)
from mitmproxy.websocket import WebSocketMessage
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection
from wsproto.frame_protocol import CloseReason, Opcode

from addon.core.live import Frame, TooMuchHeld, is_relevant
from addon.core.security.secrets import Redaction
from addon.graft.grafter import GraftFailed
from addon.graft.session_config import SessionConfig
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.messages import FlowState
from addon.hooks.mitmproxy_patches import Commands, Relay, relay_through
from addon.hooks.routing import Route, Routing, session_config_of
from addon.hooks.runtime import Runtime
from addon.hooks.secrets import redaction_of
from addon.loop.live import LiveSession
from addon.surfaces.incoming import Operation

logger = logging.getLogger("toolgraft")

# mitmproxy cuts changed messages into pieces of 4000 bytes, even within a character; its code recommends this setting
# to prevent that. An unchanged message is sent in the pieces in which it arrived.
Fragmentizer.FRAGMENT_SIZE = max(Fragmentizer.FRAGMENT_SIZE, 1 << 40)

_MAX_REASON = 123  # bytes, in a close frame
_COST = 256  # the approximate memory use of a message or a frame besides its content, in bytes
_PIECE = 4096  # bytes; each may become a thousand if the connection is compressed


@dataclass
class _Injected(WebSocketMessageInjected):
    """A message from the proxy to the service. `sent` is called after it was sent."""

    sent: Callable[[], None]


@dataclass
class _Refused(WebSocketMessageInjected):
    """Closes a connection. The message is the reason."""

    code: CloseReason


@dataclass(slots=True)
class _Bounds:
    """The most bytes of one message, and of all messages that mitmproxy keeps. `kept`: their current size."""

    message: int
    history: int
    kept: int = 0


def _relay(bounds: _Bounds, layer: WebsocketLayer, event: events.Event, relay: Relay) -> Commands:
    """Like mitmproxy's method, except for the proxy's messages and for messages that are too long."""
    websocket = layer.flow.websocket
    assert websocket is not None
    if websocket.timestamp_end is not None:
        return
    if isinstance(event, _Refused):
        yield from _closed(layer, event.message.content, event.code)
    elif isinstance(event, _Injected):
        message = event.message
        websocket.messages.append(message)
        yield WebsocketMessageHook(layer.flow)
        _forget_oldest(websocket.messages, bounds, len(message.content) + _COST)
        if not message.dropped:
            yield layer.server_ws.send2(Fragmentizer([], message.is_text).msg(message.content, message_finished=True))
        event.sent()
    else:
        yield from _relay_bounded(layer, event, relay, bounds)


def _relay_bounded(layer: WebsocketLayer, event: events.Event, relay: Relay, bounds: _Bounds) -> Commands:
    assert layer.flow.websocket is not None
    messages = layer.flow.websocket.messages
    for piece in _pieces(event):
        relaying = relay(layer, piece)
        command = next(relaying, None)
        while command is not None:
            newest = messages[-1] if isinstance(command, WebsocketMessageHook) else None
            if newest is not None and len(newest.content) > bounds.message and not newest.injected:
                messages.pop()
                yield from _closed(layer, _too_long(bounds), CloseReason.MESSAGE_TOO_BIG)
                return
            result = yield command
            if newest is not None:
                _forget_oldest(messages, bounds, len(newest.content) + _COST)
            try:
                command = relaying.send(result)
            except StopIteration:
                break
        if layer.flow.websocket.timestamp_end is not None:
            return
        if any(_size(side.frame_buf) > bounds.message for side in (layer.client_ws, layer.server_ws)):
            yield from _closed(layer, _too_long(bounds), CloseReason.MESSAGE_TOO_BIG)
            return


def _pieces(event: events.Event) -> Iterator[events.Event]:
    """The event, with its data in pieces that unpack to a few MiB at most, because the limit is checked after each."""
    if not isinstance(event, events.DataReceived) or len(event.data) <= _PIECE:
        yield event
        return
    for start in range(0, len(event.data), _PIECE):
        yield events.DataReceived(event.connection, event.data[start : start + _PIECE])


def _size(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames)) + (len(frames) - 1) * _COST


def _too_long(bounds: _Bounds) -> bytes:
    return b"toolgraft: a message has more than %d bytes (graft_max_event)" % bounds.message


def _forget_oldest(messages: list[WebSocketMessage], bounds: _Bounds, size: int) -> None:
    """Keep the newer half of the messages if there are too many; mitmproxy keeps all until a connection ends. `size`:
    of the newest. A script may have removed messages, even the newest."""
    bounds.kept += size
    if bounds.kept <= bounds.history:
        return
    sizes = [len(message.content) + _COST for message in messages]
    bounds.kept, count = sum(sizes), 0
    while bounds.kept > bounds.history // 2 and count < len(messages) - 1:
        bounds.kept -= sizes[count]
        count += 1
    del messages[:count]


def _closed(layer: WebsocketLayer, reason: bytes, code: CloseReason) -> Commands:
    close = CloseConnection(code, reason[:_MAX_REASON].decode(errors="ignore"))
    websocket = layer.flow.websocket
    assert websocket is not None
    websocket.timestamp_end, websocket.closed_by_client = time.time(), False
    websocket.close_code, websocket.close_reason = close.code, close.reason
    for side in (layer.server_ws, layer.client_ws):
        if side.state is ConnectionState.OPEN:
            yield side.send2(close)
        yield commands.CloseConnection(side.conn)
    yield WebsocketEndHook(layer.flow)
    layer.flow.live = False


@dataclass(frozen=True, slots=True)
class _Connection:
    session: LiveSession
    redaction: Redaction


class LiveHooks:
    """Runs after the routing. Connections of sessions without a toolset are ignored."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self._configs = FlowState[SessionConfig]("live_session_config")
        self._connections = FlowState[_Connection]("live_connection")

    def request(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        route, runtime = self.routing.routes.get(flow), self.lifecycle.runtime
        if route is None or route.target.operation is not Operation.LIVE or runtime is None:
            return None
        if flow.response is not None or flow.error is not None:
            return None
        relay_through[flow] = partial(_relay, _Bounds(runtime.settings.max_event, runtime.settings.max_answer))
        return self._begin(flow, route, runtime)

    async def _begin(self, flow: http.HTTPFlow, route: Route, runtime: Runtime) -> None:
        if self.lifecycle.filters_out(flow):
            return
        await runtime.ready.wait()
        runtime.grafter.metrics.count_request(route.target.surface, route.target.operation)
        config = await session_config_of(flow, route, runtime)
        if config is not None:
            self._configs[flow] = config

    def websocket_start(self, flow: http.HTTPFlow) -> None:
        config, runtime = self._configs.pop(flow), self.lifecycle.runtime
        if config is None or runtime is None:
            return
        target = self.routing.routes[flow].target
        send = partial(self._inject, flow)
        try:
            session = LiveSession(runtime.grafter, runtime.executors, config, target, send)
        except Exception as error:
            failure = runtime.grafter.failed(error, "a Live connection could not be started")
            if runtime.settings.on_store_error != "pass":
                self._refuse(flow, str(failure))
            return
        self._connections[flow] = _Connection(session, redaction_of(flow))
        runtime.lives.add(session)

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        connection = self._connections.get(flow)
        if connection is None or flow.websocket is None:
            return
        session, message = connection.session, flow.websocket.messages[-1]
        if message.injected:
            return
        content = message.content if message.from_client else connection.redaction.data(message.content)
        frame = Frame(content, message.is_text)
        try:
            if message.from_client:
                forwarded = session.from_client(frame)
            else:
                forwarded = session.from_server(frame)
        except TooMuchHeld as error:
            message.drop()
            self._refuse(flow, f"{error} (graft_max_event)", CloseReason.MESSAGE_TOO_BIG)
            return
        except GraftFailed as error:
            message.drop()
            self._refuse(flow, str(error))
            return
        except Exception:
            logger.exception("a Live frame was not understood")
            # a client must not see a frame that may hold a call
            forwarded = None if not message.from_client and is_relevant(frame.data) else frame.data
        if forwarded is None:
            message.drop()
        elif forwarded is not message.content:
            message.content = forwarded

    def websocket_end(self, flow: http.HTTPFlow) -> None:
        connection, runtime = self._connections.pop(flow), self.lifecycle.runtime
        if connection is not None and runtime is not None:
            runtime.lives.end(connection.session)

    def _inject(self, flow: http.HTTPFlow, frame: Frame) -> None:
        connection = self._connections.get(flow)
        if connection is None:
            return
        kind = Opcode.TEXT if frame.text else Opcode.BINARY
        message = WebSocketMessage(kind, True, frame.data, injected=True)
        _to_layer(_Injected(flow, message, connection.session.confirm_sent))

    def _refuse(self, flow: http.HTTPFlow, why: str, code: CloseReason = CloseReason.INTERNAL_ERROR) -> None:
        """Close the connection and tell the client why."""
        message = WebSocketMessage(Opcode.TEXT, False, f"toolgraft: {why}".encode(), injected=True)
        _to_layer(_Refused(flow, message, code))


def _to_layer(event: WebSocketMessageInjected) -> None:
    try:
        ctx.master.addons.get("proxyserver").inject_event(event)
    except ValueError:
        logger.debug("a frame was not sent: its connection has just closed")
