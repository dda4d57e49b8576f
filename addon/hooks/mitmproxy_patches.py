"""The six methods of mitmproxy that toolgraft replaces, and the attributes by which the rest of the addon uses them.

Each gives its reason, and a change to mitmproxy that would make it unnecessary. `addon/hooks/mitmproxy_check.py` tests
them when the addon is loaded.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from mitmproxy import ctx, http
from mitmproxy.addons.serverplayback import ServerPlayback
from mitmproxy.connection import Client
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http import HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.websocket import (
    WebsocketLayer,
)
from mitmproxy.proxy.server import ConnectionHandler

from addon.hooks.destinations import Connecting, MorePieces, on_own_connection, send_elsewhere, take_over
from addon.hooks.messages import FlowState
from addon.loop.server import LoopAnswer

logger = logging.getLogger("toolgraft")

Commands = Generator[commands.Command, Any]


def original(owner: type, name: str) -> Any:
    if (found := getattr(owner, name, None)) is None:
        raise RuntimeError(misfit(f"its {owner.__qualname__} has no {name}"))
    return found


def misfit(why: str) -> str:
    return f"toolgraft does not fit mitmproxy {version('mitmproxy')}: {why}. Install mitmproxy 12 (12.2 or newer)."


# --- HttpStream.make_server_connection --------------------------------------------------------------------------------

ChooseDestination = Callable[[http.HTTPFlow], LoopAnswer | http.Request | None]
"""Called once, after the hooks of a request. Returns the loop that answers it, the request to send instead, or None to
send it unchanged."""

choose_destination = FlowState[ChooseDestination]("choose_destination")

_MISTAKE = "a mistake in the proxy itself; its log says which"
_make_server_connection = original(HttpStream, "make_server_connection")


def make_server_connection(self: HttpStream) -> Connecting:
    """Reason: mitmproxy can send a request only to the host in its flow. Later addons would see a change to the flow,
    and their own changes would be lost. Also, one connection to a server would serve several credentials.

    For mitmproxy: let an addon choose the connection of a request after every hook has run."""
    choose = choose_destination.pop(self.flow)
    try:
        destination = choose(self.flow) if choose is not None else None
    except Exception:
        logger.exception("a request was not sent on")
        failure = ResponseProtocolError(self.stream_id, _MISTAKE, ErrorCode.GENERIC_SERVER_ERROR)
        yield from self.handle_protocol_error(failure)
        return False
    if isinstance(destination, LoopAnswer):
        take_over(self, destination)
        return True
    connecting = _make_server_connection(self) if destination is None else send_elsewhere(self, destination)
    return (yield from on_own_connection(self.flow, connecting))


HttpStream.make_server_connection = make_server_connection  # type: ignore[method-assign]

# --- ConnectionHandler.wakeup -----------------------------------------------------------------------------------------

_wakeup = original(ConnectionHandler, "wakeup")


async def wakeup(self: ConnectionHandler, request: commands.RequestWakeup) -> None:
    """Reason: a layer of mitmproxy can wait only for a delay. A loop's answer continues when more of it is available
    and the client has received all bytes so far.

    For mitmproxy: let `RequestWakeup` take an awaitable as an alternative to a delay."""
    if isinstance(request, MorePieces):
        await request.arrive(self.drain_writers)
    await _wakeup(self, request)


ConnectionHandler.wakeup = wakeup  # type: ignore[method-assign]

# --- HttpStream.send_response -----------------------------------------------------------------------------------------

on_handover = FlowState[Callable[[bool], None]]("on_handover")
"""Called once, with whether the client has the whole answer. Not called if the proxy ends before that is known."""

_flushing: set[asyncio.Task[None]] = set()
_send_response = original(HttpStream, "send_response")


def send_response(self: HttpStream, already_streamed: bool = False) -> Commands:
    """Reason: a call must run again unless its client has the answer, but the hook `response` runs before an answer, or
    the end of a stream, is written. mitmproxy's method returns when everything was written or the client is gone. A
    stream is written before the hook: its client may have read the last event and left since.

    For mitmproxy: add a hook that runs when the client's connection has taken the last byte."""
    yield from _send_response(self, already_streamed)
    if self.flow not in on_handover:
        return
    if already_streamed or self.client_state == self.state_done:
        _written(self.flow)
    else:
        handover_failed(self.flow)


HttpStream.send_response = send_response  # type: ignore[method-assign]


def handover_failed(flow: http.HTTPFlow) -> None:
    """Report that the client will not get the whole answer."""
    if (settle := on_handover.pop(flow)) is not None:
        _settle(settle, whole=False)


def _written(flow: http.HTTPFlow) -> None:
    """Report the handover once the operating system has taken all data, which then outlives the proxy."""
    settle = on_handover.pop(flow)
    assert settle is not None
    writer = _writer(flow.client_conn)
    if writer is None or not writer.transport.get_write_buffer_size():
        _settle(settle, whole=True)
        return
    task = asyncio.ensure_future(_flushed(writer, settle))
    _flushing.add(task)
    task.add_done_callback(_flushing.discard)


async def _flushed(writer: asyncio.StreamWriter, settle: Callable[[bool], None]) -> None:
    writer.transport.set_write_buffer_limits(0)  # `drain` waits until the buffer is empty
    try:
        await writer.drain()
    except OSError:
        _settle(settle, whole=False)
    else:
        _settle(settle, whole=True)


def _settle(settle: Callable[[bool], None], *, whole: bool) -> None:
    try:
        settle(whole)
    except Exception:
        logger.exception("whether the client has an answer could not be noted")


def _writer(client: Client) -> asyncio.StreamWriter | None:
    handler = ctx.master.addons.get("proxyserver").connections.get(client.id)
    found = handler.transports.get(client) if handler is not None else None
    return found.writer if found is not None and isinstance(found.writer, asyncio.StreamWriter) else None


# --- HttpStream.handle_protocol_error ---------------------------------------------------------------------------------

error_response = FlowState[Callable[[str], http.Response]]("error_response")
"""Makes the response for a client that has received nothing of the answer, from mitmproxy's error message."""

_handle_protocol_error = original(HttpStream, "handle_protocol_error")


def handle_protocol_error(self: HttpStream, event: RequestProtocolError | ResponseProtocolError) -> Commands:
    """Reason: if an answer breaks off before its client has any of it, mitmproxy writes an HTML page, which clients of
    an API cannot read.

    For mitmproxy: send `flow.response` if the hook `error` sets it."""
    has_nothing = self.server_state in (
        self.state_uninitialized,
        self.state_wait_for_response_headers,
        self.state_consume_response_body,
    )
    failing, result = _handle_protocol_error(self, event), None
    with suppress(StopIteration):
        while True:
            command = failing.send(result)
            replacement = _replacement(self, command.event) if has_nothing and isinstance(command, SendHttp) else None
            if replacement is None:
                result = yield command
            else:
                yield from replacement
                result = None


HttpStream.handle_protocol_error = handle_protocol_error  # type: ignore[method-assign]


def _replacement(stream: HttpStream, event: object) -> list[commands.Command] | None:
    """The commands that send the client a response instead of `event`; None to send `event`."""
    if not isinstance(event, ResponseProtocolError) or event.code.http_status_code() is None:
        return None
    make_response = error_response.pop(stream.flow)
    if make_response is None:
        return None
    response = make_response(event.message)
    sent = (
        ResponseHeaders(stream.stream_id, response),
        ResponseData(stream.stream_id, response.content or b""),
        ResponseEndOfMessage(stream.stream_id),
    )
    return [SendHttp(each, stream.context.client) for each in sent]


# --- WebsocketLayer.relay_messages ------------------------------------------------------------------------------------

Relay = Callable[[WebsocketLayer, events.Event], Commands]

relay_through = FlowState[Callable[[WebsocketLayer, events.Event, Relay], Commands]]("relay_through")
"""Relays the messages of a WebSocket connection. Its last argument is mitmproxy's own method."""

_relay_messages: Relay = original(WebsocketLayer, "relay_messages")


def relay_messages(self: WebsocketLayer, event: events.Event) -> Commands:
    """Reason: mitmproxy appends an injected message to an incomplete one from the client, and does not report when it
    was sent. It can neither close a connection nor limit its messages.

    For mitmproxy: inject whole messages, with a callback, and a close; limit the messages that are kept."""
    relay = relay_through.get(self.flow)
    yield from _relay_messages(self, event) if relay is None else relay(self, event, _relay_messages)


WebsocketLayer.relay_messages = relay_messages  # type: ignore[method-assign]

# --- ServerPlayback.request -------------------------------------------------------------------------------------------

diverted = FlowState[Any]("diverted")
"""Set for a flow that a loop will answer, until the loop begins."""

_replay = original(ServerPlayback, "request")


def request(self: ServerPlayback, f: http.HTTPFlow) -> None:
    """Reason: a recording replaces the upstream, so it answers the flows of a loop's requests. The client's flow would
    get the answer to the first of them, or be killed because it was not recorded.

    For mitmproxy: let an addon exclude a flow from `--server-replay`."""
    if f not in diverted:
        _replay(self, f)


ServerPlayback.request = request  # type: ignore[method-assign]
