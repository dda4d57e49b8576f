"""Sends the head of a message together with its body: mitmproxy writes both one after the other, and each write costs a
call of the system, through TLS also a record."""

from collections.abc import Generator, Iterator
from typing import Any

from mitmproxy.proxy.commands import Command, SendData
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import RequestHeaders, ResponseHeaders
from mitmproxy.proxy.layers.http._http1 import Http1Connection

from addon.hooks.shortcuts import Method, Shortcut

Commands = Generator[Command, Any]

_LARGE = 128 * 1024
"""Bytes. To copy a larger body costs more than to write it apart."""

_HEAD = "_toolgraft_head"
"""The attribute of a connection that holds the head whose body comes next."""


def joins_heads(send_any: Method) -> Method:
    """Keeps a head back until the body, which is next if the message has one and does not stream."""

    def send(self: Http1Connection, event: HttpEvent) -> Commands:
        if isinstance(event, RequestHeaders | ResponseHeaders):
            return _hold(self, send_any(self, event)) if _has_body(event) else send_any(self, event)
        head = vars(self).pop(_HEAD, None)
        return send_any(self, event) if head is None else _behind(head, send_any(self, event))

    return send


def _has_body(event: RequestHeaders | ResponseHeaders) -> bool:
    message = event.request if isinstance(event, RequestHeaders) else event.response
    return bool(not event.end_stream and not message.stream and message.data.content)


def _hold(connection: Http1Connection, commands: Iterator[Command]) -> Commands:
    for command in commands:
        if type(command) is SendData:
            vars(connection)[_HEAD] = command
        else:
            yield command


def _behind(head: SendData, commands: Iterator[Command]) -> Commands:
    first = next(commands, None)
    if type(first) is SendData and len(first.data) <= _LARGE:
        first.data = head.data + first.data
    else:
        yield head
    if first is not None:
        yield first
        yield from commands


_HTTP1 = "mitmproxy.proxy.layers.http._http1:"
_STREAM = "mitmproxy.proxy.layers.http:HttpStream."

SENDING_SHORTCUTS = (
    Shortcut(joins_heads, "a5222f85144660d7", _HTTP1 + "Http1Client.send", _STREAM + "state_consume_request_body"),
    Shortcut(joins_heads, "d320ea743b52f75a", _HTTP1 + "Http1Server.send", "addon.hooks.handover:_send_response"),
)
