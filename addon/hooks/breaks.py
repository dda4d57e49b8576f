"""Answers that break off: a callback before any script runs, and an error response if the client has nothing yet.

mitmproxy runs the hook `error` script by script, however long each takes, and then writes an HTML page. One method of
mitmproxy is therefore replaced below. If it is missing, importing this module fails.
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

from addon.hooks.destinations import check
from addon.hooks.flow_state import FlowState
from addon.hooks.streams import is_stopped

on_break = FlowState[Callable[[], None]]("on_break")
"""Called once when an answer breaks off, before any script is told: scripts may take long, and the client may ask again
meanwhile."""

error_response = FlowState[Callable[[str], http.Response]]("error_response")
"""Makes the response for a client that has received nothing of the answer, from mitmproxy's error message."""

has_last_words = FlowState[Callable[[], bool]]("has_last_words")
"""Whether a stream still has bytes of its own for the client: if its upstream breaks off, it ends with these."""

logger = logging.getLogger("toolgraft")

check(
    HttpStream,
    "handle_protocol_error",
    "state_uninitialized",
    "state_wait_for_response_headers",
    "state_consume_response_body",
    "state_stream_response_body",
)
_handle_protocol_error = HttpStream.handle_protocol_error


def handle_protocol_error(
    self: HttpStream, event: RequestProtocolError | ResponseProtocolError
) -> Generator[commands.Command, Any]:
    """As mitmproxy's, which runs the hook `error` unless the answer is complete."""
    if isinstance(event, ResponseProtocolError) and self.flow in is_stopped:
        return
    if isinstance(event, ResponseProtocolError) and self.client_state != self.state_errored:
        ends = has_last_words.pop(self.flow)
        if ends is not None and ends():
            yield from self.state_stream_response_body(ResponseEndOfMessage(self.stream_id))
            return
    # Streams of the addon's have states of their own, so the states without a head are named.
    has_nothing = self.server_state in (
        self.state_uninitialized,
        self.state_wait_for_response_headers,
        self.state_consume_response_body,
    )
    if self.client_state != self.state_errored and self.server_state not in (self.state_done, self.state_errored):
        _run_on_break(self.flow)
    failing = _handle_protocol_error(self, event)
    command = next(failing, None)
    while command is not None:
        if (
            has_nothing
            and isinstance(command, SendHttp)
            and (replacement := _replacement(self, command.event)) is not None
        ):
            yield from replacement
            result = None
        else:
            result = yield command
        try:
            command = failing.send(result)
        except StopIteration:
            return


HttpStream.handle_protocol_error = handle_protocol_error  # type: ignore[method-assign]


def _run_on_break(flow: http.HTTPFlow) -> None:
    callback = on_break.pop(flow)
    try:
        if callback is not None:
            callback()
    except Exception:
        logger.exception("the end of a broken-off answer could not be noted")


def _replacement(stream: HttpStream, event: object) -> list[commands.Command] | None:
    """What to send to the client instead of `event`; None to send `event`."""
    if not isinstance(event, ResponseProtocolError) or event.code.http_status_code() is None:
        return None
    make_response = error_response.pop(stream.flow)
    if make_response is None:
        return None
    response = make_response(event.message)
    events = (
        ResponseHeaders(stream.stream_id, response),
        ResponseData(stream.stream_id, response.content or b""),
        ResponseEndOfMessage(stream.stream_id),
    )
    return [SendHttp(each, stream.context.client) for each in events]
