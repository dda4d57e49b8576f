"""Chains the stages of streamed answers: the addon's own and those of scripts before and after it. Also answers that
must be complete before anyone sees them.

A flow has one `response.stream`, and the last hook to set it wins: a script after the addon would replace the addon's
stage and see the calls that are hidden from the client. The chain is therefore built once all hooks have run, when
mitmproxy begins to stream. For this, methods of mitmproxy are replaced below. If one is missing, importing this module
fails.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

from mitmproxy import ctx, flowfilter, http
from mitmproxy.proxy import commands
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layers.http import HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseProtocolError,
)

from addon.core.framing.encoding import BadEncoding, Decompress, TooLong
from addon.core.framing.replies import is_answer
from addon.hooks.destinations import check
from addon.hooks.flow_state import FlowState
from addon.hooks.headers import names, put, value
from addon.settings import Settings

logger = logging.getLogger("toolgraft")

Stage = Callable[[bytes], bytes | Iterable[bytes]]
"""The callable that mitmproxy expects in `response.stream`: takes the next bytes, b"" at the end."""


@dataclass(slots=True)
class _Stages:
    """The stages of an answer. `own`: the addon's stage, None if the answer must be complete; `last`: `own` comes after
    all scripts. `begin` is called when the answer begins to stream."""

    earlier: Stage | None
    own: Stage | None
    begin: Callable[[http.HTTPFlow], None]
    last: bool
    is_over: Callable[[], bool] | None = None


@dataclass(slots=True)
class _Limit:
    """For an answer that does not stream. `reached` returns what is sent instead of an answer of more than `most`
    bytes, or None if it is to stream from there on. `unpack` undoes its compression if what counts is the result."""

    most: int
    reached: Callable[[], http.Response | None]
    unpack: Decompress | None = None

    def is_exceeded(self, size: int, data: bytes) -> bool:
        if size + len(data) > self.most:
            return True
        try:
            if self.unpack is not None:
                self.unpack(data)
        except TooLong:
            return True
        except BadEncoding:
            self.unpack = None  # the hook `response` fails at it
        return False


_stages = FlowState[_Stages]("stages")
_limits = FlowState[_Limit]("limit")
_streamed = FlowState[bool]("streamed")
_is_over = FlowState[Callable[[], bool]]("is_over")

is_stopped = FlowState[bool]("is_stopped")
"""Set if the client's answer ends before the upstream's: how that ends then is no error."""

is_cut_off = FlowState[bool]("is_cut_off")
"""Set if the proxy has closed the upstream's connection: what ends with that is not the whole answer."""


def stream_through(
    flow: http.HTTPFlow,
    own: Stage,
    begin: Callable[[http.HTTPFlow], None] = lambda flow: None,
    *,
    last: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Stream an answer through the stage `own`. Once `is_over`, the client's answer ends and no more is received."""
    assert flow.response is not None
    _stages[flow] = _Stages(_callable(flow), own, begin, last, is_over)
    flow.response.stream = own


def receive_whole(flow: http.HTTPFlow) -> None:
    """Do not stream an answer, whatever scripts want. The hook `response` must call `ended_whole` and then
    `run_later_stages`."""
    assert flow.response is not None
    _stages[flow] = _Stages(_callable(flow), None, lambda flow: None, False)
    flow.response.stream = False


def limit(
    flow: http.HTTPFlow, most: int, instead: Callable[[], http.Response], unpack: Decompress | None = None
) -> None:
    """If the answer does not stream and has more than `most` bytes, send `instead`, and receive no more of it.
    `unpack`, which raises TooLong, is given if they are counted after decompression."""
    _limits[flow] = _Limit(most, instead, unpack)


def stream_above(flow: http.HTTPFlow, most: int) -> None:
    """Stream an answer from the moment when it has more than `most` bytes."""
    _limits[flow] = _Limit(most, lambda: None)


def start(flow: http.HTTPFlow) -> bool:
    """Build the chain of a stream once all hooks have seen its head. Returns False if it must not stream."""
    found = _stages.get(flow)
    if found is not None and found.own is None:
        return False
    _streamed[flow] = True
    if found is None or found.own is None:
        return True
    del _stages[flow]
    assert flow.response is not None
    later = _callable(flow) if flow.response.stream is not found.own else None
    order = (found.earlier, later, found.own) if found.last else (found.earlier, found.own, later)
    stages = [stage for stage in order if stage is not None]
    flow.response.stream = found.own if len(stages) == 1 else _chained(stages)
    if found.is_over is not None:
        _is_over[flow] = found.is_over
    found.begin(flow)
    return True


def ended_whole(flow: http.HTTPFlow) -> bool:
    """Whether the answer, now complete, did not stream. If so, the stages of scripts before the addon are applied."""
    if flow in _streamed:
        return False
    found = _stages.get(flow)
    if found is not None and found.earlier is not None:
        _pass(flow, found.earlier)
    return True


def run_later_stages(flow: http.HTTPFlow) -> None:
    """Apply the stages of scripts after the addon to a complete answer, once the addon is done with it."""
    found = _stages.pop(flow)
    if found is None or flow.response is None:
        return
    if found.own is None and (later := _callable(flow)) is not None:
        _pass(flow, later)
        flow.response.stream = False


def _callable(flow: http.HTTPFlow) -> Stage | None:
    stream = flow.response.stream if flow.response is not None else None
    return stream if callable(stream) else None


def _pass(flow: http.HTTPFlow, stage: Stage) -> None:
    response = flow.response
    if response is None or response.data.content is None:
        return
    try:
        response.data.content = _joined(stage(response.data.content)) + _joined(stage(b""))
    except Exception:
        logger.exception("a script's stream callable failed")
        # the script might have removed something from it
        response.data.content, response.data.status_code, response.data.reason = b"", 502, b"Bad Gateway"
    if b"transfer-encoding" not in names(response.headers):
        put(response.headers, b"content-length", b"%d" % len(response.data.content))


def _chained(stages: Sequence[Stage]) -> Stage:
    def chained(data: bytes) -> list[bytes]:
        ends = not data
        for stage in stages:
            data = _joined(stage(data)) if data else b""
            if ends:
                data += _joined(stage(b""))
        return [data] if data else []

    return chained


def _joined(given: bytes | Iterable[bytes]) -> bytes:
    return given if isinstance(given, bytes) else b"".join(given)


# --- answers that must not stream -------------------------------------------------------------------------------------


def is_stream(response: http.Response, *, asked: bool) -> bool:
    """Whether a model's answer is a stream: because it was `asked` for, or by its content type."""
    if not is_answer(response.status_code):
        return False
    return asked or (value(response.headers, b"content-type") or "").lower().startswith("text/event-stream")


def comes_whole(flow: http.HTTPFlow, settings: Settings) -> bool:
    """Whether an answer must be complete before it is passed on: because of `graft_stream`, or of a `modify_body` rule
    that may match it, since those rules need whole bodies."""
    if settings.stream == "off":
        return True
    addon = ctx.master.addons.get("modifybody")
    return addon is not None and any(_may_match(rule.matches, flow) for rule in addon.replacements)


def _may_match(rule: Any, flow: http.HTTPFlow) -> bool:
    return True in _outcomes(rule, flow)


def _outcomes(rule: Any, flow: http.HTTPFlow) -> set[bool]:
    """The possible results of a flow filter once the answer has a body."""
    match rule:
        case flowfilter.FBod() | flowfilter.FBodResponse():
            return {True, False}
        case flowfilter.FNot():
            return {not one for one in _outcomes(rule.itm, flow)}
        case flowfilter.FAnd():
            each = [_outcomes(one, flow) for one in rule.lst]
            return {one for one in (True, False) if (all if one else any)(one in outcomes for outcomes in each)}
        case flowfilter.FOr():
            each = [_outcomes(one, flow) for one in rule.lst]
            return {one for one in (True, False) if (any if one else all)(one in outcomes for outcomes in each)}
    return {bool(rule(flow))}


# --- mitmproxy --------------------------------------------------------------------------------------------------------

check(HttpStream, "start_response_stream", "state_consume_response_body", "state_stream_response_body")
check(HttpStream, "start_request_stream", "state_consume_request_body")
_start_response_stream = HttpStream.start_response_stream


def start_response_stream(self: HttpStream) -> Generator[commands.Command, Any]:
    """As mitmproxy's, except for answers that must not stream or that have several stages."""
    if start(self.flow):
        yield from _start_response_stream(self)
        if self.flow in _is_over:
            self.server_state = MethodType(_stream_until_over, self)
    else:
        self.server_state = self.state_consume_response_body


HttpStream.start_response_stream = start_response_stream  # type: ignore[method-assign]


def _stream_until_over(self: HttpStream, event: Event) -> Generator[commands.Command, Any]:
    """A state of mitmproxy's layer: like its streaming state, but the client's answer may end before the upstream's."""
    yield from self.state_stream_response_body(event)
    if isinstance(event, ResponseData) and _is_over[self.flow]():
        yield from _end(self)


def _end(self: HttpStream) -> Generator[commands.Command, Any]:
    """The client's answer ends, whatever else the upstream sends."""
    yield _stop_upstream(self)
    yield from self.state_stream_response_body(ResponseEndOfMessage(self.stream_id))
    self.server_state = self.state_errored


def _stop_upstream(stream: HttpStream) -> SendHttp:
    """Tell the upstream to send no more."""
    is_stopped[stream.flow] = True
    code = ErrorCode.RESPONSE_TOO_LARGE
    return SendHttp(RequestProtocolError(stream.stream_id, "the rest is not needed", code), stream.context.server)


_consume_response_body = HttpStream.state_consume_response_body


def state_consume_response_body(self: HttpStream, event: Event) -> Generator[commands.Command, Any]:
    """As mitmproxy's, except that it stops receiving an answer that has grown too long or was cut off."""
    if isinstance(event, ResponseEndOfMessage) and self.flow in is_cut_off:
        words = "the answer was cut off"
        yield from self.handle_protocol_error(
            ResponseProtocolError(self.stream_id, words, ErrorCode.GENERIC_SERVER_ERROR)
        )
        return
    found = _limits.get(self.flow) if isinstance(event, ResponseData) else None
    if found is None or not found.is_exceeded(len(self.response_body_buf), event.data):  # type: ignore[attr-defined]
        yield from _consume_response_body(self, event)
        return
    del _limits[self.flow]
    buffered = bytes(self.response_body_buf)
    self.response_body_buf.clear()
    instead = found.reached()
    if instead is None:
        assert isinstance(event, ResponseData)
        yield from _stream_from_here(self, buffered + event.data)
        return
    yield _stop_upstream(self)
    self.flow.response = instead
    yield from self.send_response()
    self.server_state = self.state_errored


HttpStream.state_consume_response_body = state_consume_response_body  # type: ignore[method-assign]


def _stream_from_here(self: HttpStream, buffered: bytes) -> Generator[commands.Command, Any]:
    assert self.flow.response is not None
    self.flow.response.stream = True
    yield from self.start_response_stream()
    yield from self.server_state(ResponseData(self.stream_id, buffered))


_start_request_stream = HttpStream.start_request_stream


def start_request_stream(self: HttpStream) -> Generator[commands.Command, Any]:
    """As mitmproxy's, which fails if an addon has answered the request."""
    if self.flow.response is None:
        yield from _start_request_stream(self)
    else:
        self.client_state = self.state_consume_request_body


HttpStream.start_request_stream = start_request_stream  # type: ignore[method-assign]
