"""WebSockets of the Live API: their frames are handed to `addon.loop.live`, and what it says is done to them.

mitmproxy takes a frame back as it is, changed or dropped; frames of the proxy's own are injected, and come through the
hook once more, marked as such. Two things of mitmproxy's are changed for that, below. A mitmproxy that has them no more
fails when this module is imported, so that the proxy does not start.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial

from mitmproxy import ctx, flowfilter, http
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

from addon.core.live import Frame, is_relevant
from addon.core.security.redaction import Redaction
from addon.graft.exchange import Reply
from addon.graft.grafter import EXCHANGE_FAILED, GraftFailed
from addon.graft.session_config import SessionConfig
from addon.hooks.grafting import response_of
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.perflow import PerFlow
from addon.hooks.routing import Route, Routing
from addon.hooks.runtime import Runtime
from addon.hooks.secrets import redaction_of
from addon.loop.live import LiveSession
from addon.surfaces import Operation

logger = logging.getLogger("toolgraft")

# mitmproxy cuts messages that an addon has changed into pieces of 4000 bytes, through the middle of characters, and
# advises those who mind to do this. One that nobody has changed is sent in the pieces that it came in
Fragmentizer.FRAGMENT_SIZE = max(Fragmentizer.FRAGMENT_SIZE, 1 << 40)

_MAX_REASON = 123  # bytes, in a close frame
_relay = WebsocketLayer.relay_messages


@dataclass
class _Injected(WebSocketMessageInjected):
    """A message of the proxy's own for the service. `sent` is called when it has gone."""

    sent: Callable[[], None]


class _Refused(WebSocketMessageInjected):
    """The end of a connection, whose message is the reason."""


def relay_messages(layer: WebsocketLayer, event: events.Event) -> Generator[commands.Command, object]:
    """As mitmproxy's, but for messages of the proxy's own: mitmproxy would join one to the part that has come so far
    of a message of the client's, and would not say when it has gone. And it cannot end a connection."""
    if isinstance(event, _Refused):
        yield from _closed(layer, event.message.content)
        return
    if not isinstance(event, _Injected):
        yield from _relay(layer, event)
        return
    message, websocket = event.message, layer.flow.websocket
    assert websocket is not None
    websocket.messages.append(message)
    yield WebsocketMessageHook(layer.flow)
    if not message.dropped:
        yield layer.server_ws.send2(Fragmentizer([], message.is_text).msg(message.content, message_finished=True))
    event.sent()


def _closed(layer: WebsocketLayer, reason: bytes) -> Generator[commands.Command, object]:
    close = CloseConnection(CloseReason.INTERNAL_ERROR, reason[:_MAX_REASON].decode(errors="ignore"))
    websocket = layer.flow.websocket
    assert websocket is not None
    websocket.timestamp_end, websocket.closed_by_client = time.time(), False
    websocket.close_code, websocket.close_reason = close.code, close.reason
    for one in (layer.server_ws, layer.client_ws):
        if one.state is ConnectionState.OPEN:
            yield one.send2(close)
        yield commands.CloseConnection(one.conn)
    yield WebsocketEndHook(layer.flow)
    layer.flow.live = False
    layer._handle_event = layer.done


WebsocketLayer.relay_messages = relay_messages  # type: ignore[method-assign]


class LiveHooks:
    """Stands behind the routing. A connection of a session without a toolset is not looked at."""

    def __init__(self, lifecycle: Lifecycle, routing: Routing) -> None:
        self.lifecycle = lifecycle
        self.routing = routing
        self._configs = PerFlow[SessionConfig]("live_session_config")
        self._sessions = PerFlow[LiveSession]("live")
        self._secrets = PerFlow[Redaction]("live_secrets")

    def request(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        route, runtime = self.routing.routes.get(flow), self.lifecycle.runtime
        if route is None or route.target.operation is not Operation.LIVE or runtime is None:
            return None
        if flow.response is not None or flow.error is not None:
            return None
        return self._begin(flow, route, runtime)

    async def _begin(self, flow: http.HTTPFlow, route: Route, runtime: Runtime) -> None:
        if self.lifecycle.filter is not None and not flowfilter.match(self.lifecycle.filter, flow):
            return
        await runtime.ready.wait()
        runtime.grafter.metrics.request(route.target.surface, route.target.operation)
        try:
            config = await runtime.grafter.session_config(route.session)
        except EXCHANGE_FAILED as error:
            outcome = runtime.grafter.failure_outcome(route.target, b"", error)
            if isinstance(outcome, Reply):
                flow.response = response_of(outcome)
            return
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
            failure = runtime.grafter.failed(error, "a Live connection could not be begun")
            if runtime.settings.on_store_error != "pass":
                self._refuse(flow, str(failure))
            return
        self._sessions[flow] = session
        self._secrets[flow] = redaction_of(flow)
        runtime.lives.add(session)

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        session = self._sessions.get(flow)
        if session is None or flow.websocket is None:
            return
        message = flow.websocket.messages[-1]
        if message.injected:
            return
        secrets = None if message.from_client else self._secrets.get(flow)
        frame = Frame(secrets.data(message.content) if secrets else message.content, message.is_text)
        try:
            if message.from_client:
                passes = session.from_client(frame)
            else:
                passes = session.from_server(frame)
        except GraftFailed as error:
            message.drop()
            self._refuse(flow, str(error))
            return
        except Exception:
            logger.exception("a Live frame was not understood")
            # what may hold a call is no client's to see
            passes = None if not message.from_client and is_relevant(frame.data) else frame.data
        if passes is None:
            message.drop()
        elif passes is not message.content:
            message.content = passes

    def websocket_end(self, flow: http.HTTPFlow) -> None:
        self._secrets.pop(flow)
        session, runtime = self._sessions.pop(flow), self.lifecycle.runtime
        if session is not None and runtime is not None:
            runtime.lives.end(session)

    def _inject(self, flow: http.HTTPFlow, frame: Frame) -> None:
        session = self._sessions.get(flow)
        if session is None:
            return
        kind = Opcode.TEXT if frame.text else Opcode.BINARY
        message = WebSocketMessage(kind, True, frame.data, injected=True)
        _to_layer(_Injected(flow, message, session.confirm_sent))

    def _refuse(self, flow: http.HTTPFlow, why: str) -> None:
        """Close the connection, with the reason for the client."""
        message = WebSocketMessage(Opcode.TEXT, False, f"toolgraft: {why}".encode(), injected=True)
        _to_layer(_Refused(flow, message))


def _to_layer(event: WebSocketMessageInjected) -> None:
    try:
        ctx.master.addons.get("proxyserver").inject_event(event)
    except ValueError:
        logger.debug("a frame was not sent: its connection has just ended")
