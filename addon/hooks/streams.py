"""Answers that stream: through the addon and through what scripts before and behind it want them to go through, and
answers that must come whole.

A flow has one `response.stream`, and whoever sets it last has it: a script behind the addon would take its place, and
see the calls that it keeps from the client. So what streams is decided once all hooks have run, when mitmproxy begins
to stream. For that one method of mitmproxy's is replaced below; where it is missing this module cannot be imported.
"""

import logging
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

from mitmproxy import ctx, flowfilter, http
from mitmproxy.proxy import commands
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layers.http import HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import ErrorCode, RequestProtocolError, ResponseData, ResponseEndOfMessage

from addon.core.framing.replies import is_answer
from addon.hooks.headers import names, put, value
from addon.hooks.onward import check
from addon.hooks.perflow import PerFlow
from addon.settings import Settings

logger = logging.getLogger("toolgraft")

Stage = Callable[[bytes], bytes | Iterable[bytes]]
"""As mitmproxy has it in `response.stream`: takes the next bytes, b"" at the end."""


@dataclass(slots=True)
class _Stages:
    """What an answer goes through. `own`: the addon's stage, None where the answer has to come whole; `last`: it stands
    behind the scripts', whenever they were loaded. `begin` is called when it streams indeed. What comes whole and has
    more than `most` bytes gives way to `instead`."""

    earlier: Stage | None
    own: Stage | None
    begin: Callable[[http.HTTPFlow], None]
    last: bool
    is_over: Callable[[], bool] | None = None
    most: int = sys.maxsize
    instead: Callable[[], http.Response] | None = None


_stages = PerFlow[_Stages]("stages")
_streamed = PerFlow[bool]("streamed")
_overs = PerFlow[Callable[[], bool]]("over")


def through(
    flow: http.HTTPFlow,
    own: Stage,
    begin: Callable[[http.HTTPFlow], None] = lambda flow: None,
    *,
    last: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Let an answer stream through a stage. Once it `is_over`, it ends for the client, and no more of it is taken."""
    assert flow.response is not None
    _stages[flow] = _Stages(_callable(flow), own, begin, last, is_over)
    flow.response.stream = own


def whole(flow: http.HTTPFlow, most: int = sys.maxsize, instead: Callable[[], http.Response] | None = None) -> None:
    """Let an answer come whole, whatever scripts want. The hook `response` hands it to `came` and `gone`. One of more
    than `most` bytes gives way to another one."""
    assert flow.response is not None
    _stages[flow] = _Stages(_callable(flow), None, lambda flow: None, False, None, most, instead)
    flow.response.stream = False


def start(flow: http.HTTPFlow) -> bool:
    """All hooks have run for the head of an answer that is to stream; false where it has to come whole."""
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
        _overs[flow] = found.is_over
    found.begin(flow)
    return True


def came(flow: http.HTTPFlow) -> bool:
    """An answer has ended; false where it has streamed. Whole it goes through what scripts before the addon wanted it
    to stream through."""
    if flow in _streamed:
        return False
    found = _stages.get(flow)
    if found is not None and found.earlier is not None:
        _pass(flow, found.earlier)
    return True


def gone(flow: http.HTTPFlow) -> None:
    """The addon has seen it: it goes through what scripts behind the addon wanted it to stream through."""
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
        # nobody knows what the script would have taken out
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


# --- what must come whole ---------------------------------------------------------------------------------------------


def is_stream(response: http.Response, *, asked: bool) -> bool:
    """Whether a model's answer comes as a stream: as it was `asked`, or whatever was asked for."""
    if not is_answer(response.status_code):
        return False
    return asked or (value(response.headers, b"content-type") or "").lower().startswith("text/event-stream")


def comes_whole(flow: http.HTTPFlow, settings: Settings) -> bool:
    """Whether an answer that could stream has to come whole: by `graft_stream`, or for a `modify_body` rule that may
    match it, which acts on whole bodies only."""
    if settings.stream == "off":
        return True
    addon = ctx.master.addons.get("modifybody")
    return addon is not None and any(_may_match(rule.matches, flow) for rule in addon.replacements)


def _may_match(rule: Any, flow: http.HTTPFlow) -> bool:
    return True in _outcomes(rule, flow)


def _outcomes(rule: Any, flow: http.HTTPFlow) -> set[bool]:
    """What a flow filter may say of a flow once its answer has a body."""
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
_start_response_stream = HttpStream.start_response_stream


def start_response_stream(self: HttpStream) -> Generator[commands.Command, Any]:
    """As mitmproxy's, but for answers that have to come whole, or go through more than one stage."""
    if start(self.flow):
        yield from _start_response_stream(self)
        if self.flow in _overs:
            self.server_state = MethodType(_stream_until_over, self)
    else:
        self.server_state = self.state_consume_response_body


HttpStream.start_response_stream = start_response_stream  # type: ignore[method-assign]


def _stream_until_over(self: HttpStream, event: Event) -> Generator[commands.Command, Any]:
    """A state of mitmproxy's layer: as where it streams, but for answers that end before the upstream's does."""
    yield from self.state_stream_response_body(event)
    if not isinstance(event, ResponseData) or not _overs[self.flow]():
        return
    yield _no_more(self)
    yield from self.state_stream_response_body(ResponseEndOfMessage(self.stream_id))
    self.server_state = self.state_errored


def _no_more(stream: HttpStream) -> SendHttp:
    """The upstream need not send what is left."""
    code = ErrorCode.RESPONSE_TOO_LARGE
    return SendHttp(RequestProtocolError(stream.stream_id, "nothing more is taken", code), stream.context.server)


_consume_response_body = HttpStream.state_consume_response_body


def state_consume_response_body(self: HttpStream, event: Event) -> Generator[commands.Command, Any]:
    """As mitmproxy's, but for answers that have grown too long: nothing more of them is taken."""
    found = _stages.get(self.flow) if isinstance(event, ResponseData) else None
    if (
        found is None or found.instead is None or len(self.response_body_buf) + len(event.data) <= found.most  # type: ignore[attr-defined]
    ):
        yield from _consume_response_body(self, event)
        return
    self.response_body_buf.clear()
    yield _no_more(self)
    self.flow.response = found.instead()
    yield from self.send_response()
    self.server_state = self.state_errored


HttpStream.state_consume_response_body = state_consume_response_body  # type: ignore[method-assign]
