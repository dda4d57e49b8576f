"""Sends a message in one piece: mitmproxy writes its head, its body and the end of its chunks one after the other, and
each write costs a call of the system, through TLS also a record."""

from collections.abc import Generator, Iterator
from http import HTTPStatus
from typing import Any

from mitmproxy.proxy.commands import Command, SendData
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import RequestHeaders, ResponseData, ResponseHeaders
from mitmproxy.proxy.layers.http._http1 import Http1Connection

from addon.hooks.shortcuts import Method, Shortcut

Commands = Generator[Command, Any]

_LARGE = 128 * 1024
"""Bytes. To copy a larger body costs more than to write it apart."""

_BEGINNING = "_toolgraft_beginning"
"""The attribute of a connection that has the beginning of the message whose rest comes next."""


def joins_messages(send_any: Method) -> Method:
    """Keeps a head back until the body, which is next if the message has one and does not stream, and chunks until
    their end if that is next."""

    def send(self: Http1Connection, event: HttpEvent) -> Commands:
        commands: Commands = send_any(self, event)
        if isinstance(event, RequestHeaders | ResponseHeaders):
            return _hold(self, commands) if _has_body(event) else commands
        beginning = vars(self).pop(_BEGINNING, None)
        if beginning is None:
            return commands
        joined = _behind(beginning, commands)
        return _hold(self, joined) if _end_is_next(self, event) else joined

    return send


def _has_body(event: RequestHeaders | ResponseHeaders) -> bool:
    message = event.request if isinstance(event, RequestHeaders) else event.response
    return bool(not event.end_stream and not message.stream and message.data.content)


def _end_is_next(connection: Http1Connection, event: HttpEvent) -> bool:
    """Whether this is all of a small body in chunks, and its end follows at once: not before the client's request has
    ended, and never if another protocol follows."""
    response = connection.response
    return (
        isinstance(event, ResponseData)
        and len(event.data) <= _LARGE
        and connection.request_done
        and response is not None
        and response.status_code != HTTPStatus.SWITCHING_PROTOCOLS
        and "chunked" in response.headers.get("transfer-encoding", "").lower()
    )


def _hold(connection: Http1Connection, commands: Iterator[Command]) -> Commands:
    for command in commands:
        if type(command) is SendData:
            vars(connection)[_BEGINNING] = command
        else:
            yield command


def _behind(beginning: SendData, commands: Iterator[Command]) -> Commands:
    first = next(commands, None)
    if type(first) is SendData and len(first.data) <= _LARGE:
        first.data = beginning.data + first.data
    else:
        yield beginning
    if first is not None:
        yield first
        yield from commands


_HTTP1 = "mitmproxy.proxy.layers.http._http1:"
_STREAM = "mitmproxy.proxy.layers.http:HttpStream."

SENDING_SHORTCUTS = (
    Shortcut(joins_messages, "a5222f85144660d7", _HTTP1 + "Http1Client.send", _STREAM + "state_consume_request_body"),
    Shortcut(
        joins_messages,
        "8c06852fffa734a9",
        _HTTP1 + "Http1Server.send",
        "addon.hooks.handover:_send_response",
        *(_STREAM + name for name in ("flow_done", "state_stream_request_body")),
        *(_HTTP1 + name for name in ("Http1Connection.read_body", "Http1Server.mark_done")),
    ),
)
