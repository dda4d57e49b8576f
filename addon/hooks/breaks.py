"""Answers that break off: who hears of it first, and what a client is told that has nothing of the answer yet.

mitmproxy runs the hook `error` script by script, however long each takes, and then writes an HTML page. For that one
method of mitmproxy's is replaced below; where it is missing this module cannot be imported.
"""

import logging
from collections.abc import Callable, Generator
from typing import Any

from mitmproxy import http
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)

from addon.hooks.onward import check
from addon.hooks.perflow import PerFlow

broke_off = PerFlow[Callable[[], None]]("broke_off")
"""Called once, when an answer breaks off: before any script hears of it, as that may take long, and the client may be
asking again by then."""

told_instead = PerFlow[Callable[[str], http.Response]]("told_instead")
"""What a client is told, by mitmproxy's words for what happened, where it has nothing of the answer."""

logger = logging.getLogger("toolgraft")

check(HttpStream, "handle_protocol_error", "state_stream_response_body")
_handle_protocol_error = HttpStream.handle_protocol_error


def handle_protocol_error(
    self: HttpStream, event: RequestProtocolError | ResponseProtocolError
) -> Generator[commands.Command, Any]:
    """As mitmproxy's, which runs the hook `error` unless the answer has come to its end."""
    has_nothing = self.server_state != self.state_stream_response_body
    if self.client_state != self.state_errored and self.server_state not in (self.state_done, self.state_errored):
        _note(self.flow)
    failing = _handle_protocol_error(self, event)
    command = next(failing, None)
    while command is not None:
        if has_nothing and isinstance(command, SendHttp) and (instead := _instead(self, command.event)) is not None:
            yield from instead
            result = None
        else:
            result = yield command
        try:
            command = failing.send(result)
        except StopIteration:
            return


HttpStream.handle_protocol_error = handle_protocol_error  # type: ignore[method-assign]


def _note(flow: http.HTTPFlow) -> None:
    note = broke_off.pop(flow)
    try:
        if note is not None:
            note()
    except Exception:
        logger.exception("that an answer broke off could not be noted")


def _instead(stream: HttpStream, event: object) -> list[commands.Command] | None:
    """What is sent to the client in the place of this; None: this is."""
    if not isinstance(event, ResponseProtocolError) or event.code.http_status_code() is None:
        return None
    tell = told_instead.pop(stream.flow)
    if tell is None:
        return None
    response = tell(event.message)
    told = (
        ResponseHeaders(stream.stream_id, response),
        ResponseData(stream.stream_id, response.content or b""),
        ResponseEndOfMessage(stream.stream_id),
    )
    return [SendHttp(one, stream.context.client) for one in told]
