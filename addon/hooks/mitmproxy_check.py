"""Tests the replaced methods when the addon is loaded, by sending made-up exchanges through mitmproxy's layers. If
mitmproxy calls the methods at other moments, or sends other events around them, the start ends."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from mitmproxy import ctx, http
from mitmproxy.addons.serverplayback import ServerPlayback
from mitmproxy.connection import Client, Server
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    GetHttpConnection,
    GetHttpConnectionCompleted,
    HttpLayer,
    HTTPMode,
    HttpStream,
    SendHttp,
)
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestEndOfMessage,
    RequestHeaders,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.websocket import WebsocketLayer
from mitmproxy.proxy.server import ConnectionHandler
from mitmproxy.websocket import WebSocketData
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from addon.hooks.destinations import MorePieces
from addon.hooks.mitmproxy_patches import (
    Commands,
    Relay,
    choose_destination,
    diverted,
    error_response,
    misfit,
    on_handover,
    relay_through,
)
from addon.loop.runner import Head
from addon.loop.server import LoopAnswer

Steps = list[str]


def check() -> None:
    """Raises RuntimeError if mitmproxy does not fit."""
    for name, (trial, expected) in TRIALS.items():
        steps: Steps = []
        try:
            trial(steps)
        except Exception as error:
            steps.append(f"{type(error).__name__}: {error}")
        if " ".join(steps) != expected:
            raise RuntimeError(misfit(f"{name} goes another way ({' '.join(steps)})"))


def _feed(layer: Any, event: events.Event, steps: Steps) -> None:
    """Feeds an event to a layer, and replies to its commands immediately. Notes the commands."""
    for command in layer.handle_event(event):
        steps.append(type(command.event if isinstance(command, SendHttp) else command).__name__)
        if isinstance(command, commands.StartHook):
            if command.name == "requestheaders":
                (flow,) = command.args()
                choose_destination[flow] = lambda flow: steps.append("choose")
                on_handover[flow] = lambda whole: steps.append(f"handover={whole}")
                error_response[flow] = lambda message: http.Response.make(502, message)
            _feed(layer, events.HookCompleted(command), steps)
        elif isinstance(command, GetHttpConnection):
            _feed(layer, GetHttpConnectionCompleted(command, (Server(address=command.address), None)), steps)


def _context() -> Context:
    return Context(Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2)), ctx.options)


def _try_exchange(steps: Steps, *, breaks: bool = False) -> None:
    parent = HttpLayer(_context(), HTTPMode.regular)
    stream = HttpStream(parent.context.fork(), 1)
    answer = http.Response.make(200)
    whole = ResponseHeaders(1, answer), ResponseEndOfMessage(1)  # without a body, because options limit bodies
    broken = (ResponseProtocolError(1, "it broke off", ErrorCode.GENERIC_SERVER_ERROR),)
    asked = RequestHeaders(1, http.Request.make("GET", "http://localhost/"), end_stream=True), RequestEndOfMessage(1)
    for event in (events.Start(), *asked, *(broken if breaks else whole)):
        _feed(stream, event, steps)


def _try_websocket(steps: Steps) -> None:
    context = _context()
    flow = http.HTTPFlow(context.client, context.server)
    flow.response, flow.websocket = http.Response.make(101), WebSocketData()

    def relay(layer: WebsocketLayer, event: events.Event, relay: Relay) -> Commands:
        steps.append("relay")
        yield from relay(layer, event)

    relay_through[flow] = relay
    layer, frame = WebsocketLayer(context, flow), Connection(ConnectionType.CLIENT).send(TextMessage("hi"))
    for event in (events.Start(), events.DataReceived(context.client, frame)):
        _feed(layer, event, steps)


def _try_wakeup(steps: Steps) -> None:
    async def note(step: str) -> list[Head | bytes]:
        steps.append(step)
        return []

    handler: Any = SimpleNamespace(
        wakeup_timer=set(),
        drain_writers=lambda: note("drain"),
        server_event=lambda event: note(type(event).__name__),
    )
    answering = LoopAnswer()
    answering.take = lambda: note("take")  # type: ignore[method-assign]
    waking = ConnectionHandler.wakeup(handler, MorePieces(1, answering))
    with suppress(StopIteration):
        for _ in range(3):
            waking.send(None)


def _try_replay(steps: Steps) -> None:
    def look_up(flow: http.HTTPFlow) -> None:
        steps.append("looked up")
        raise LookupError

    playback, context = ServerPlayback(), _context()
    playback.flowmap, playback.next_flow = {"": []}, look_up  # type: ignore[method-assign]
    for is_diverted in (True, False):
        flow = http.HTTPFlow(context.client, context.server)
        if is_diverted:
            diverted[flow] = "something"
        with suppress(LookupError):
            playback.request(flow)


_ASKED = "HttpRequestHeadersHook HttpRequestHook choose GetHttpConnection RequestHeaders RequestEndOfMessage "

TRIALS: dict[str, tuple[Callable[[Steps], None], str]] = {
    "an answer": (
        _try_exchange,
        f"{_ASKED}HttpResponseHeadersHook HttpResponseHook "
        "ResponseHeaders DropStream ResponseEndOfMessage handover=True",
    ),
    "an answer that breaks off": (
        partial(_try_exchange, breaks=True),
        f"{_ASKED}HttpErrorHook ResponseHeaders ResponseData ResponseEndOfMessage DropStream",
    ),
    "a WebSocket message": (_try_websocket, "WebsocketStartHook relay WebsocketMessageHook SendData"),
    "a wake-up": (_try_wakeup, "drain take Wakeup"),
    "a replay": (_try_replay, "looked up"),
}
"""By name: the trial, and its expected steps."""
