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
)

from addon.core.framing.replies import is_answer
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


_stages = FlowState[_Stages]("stages")
_streamed = FlowState[bool]("streamed")
_is_over = FlowState[Callable[[], bool]]("is_over")

is_stopped = FlowState[bool]("is_stopped")
"""Set if the client's answer ends before the upstream's: how that ends then is no error."""


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


def send_instead(flow: http.HTTPFlow, response: http.Response) -> None:
    """Send this response to the client, and nothing of the answer whose head has just arrived. Its body is received and
    dropped, because a hook cannot stop an upstream."""
    body = [response.content or b""]
    response.data.content = None
    response.stream = lambda chunk: [body.pop()] if body else []
    flow.response = response


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
    """The client's answer ends, whatever else the upstream sends, which is told to send no more."""
    is_stopped[self.flow] = True
    stop = RequestProtocolError(self.stream_id, "the rest is not needed", ErrorCode.RESPONSE_TOO_LARGE)
    yield SendHttp(stop, self.context.server)
    yield from self.state_stream_response_body(ResponseEndOfMessage(self.stream_id))
    self.server_state = self.state_errored
