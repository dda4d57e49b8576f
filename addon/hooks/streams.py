"""Decides which bodies are streamed and which mitmproxy receives whole: models' answers, and large bodies that the
addon does not rewrite."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from mitmproxy import ctx, flowfilter, http

from addon.core.framing.replies import is_answer
from addon.hooks.messages import FlowState, names, put, value
from addon.settings import Settings

logger = logging.getLogger("toolgraft")

Stage = Callable[[bytes], bytes | Iterable[bytes]]
"""The callable that mitmproxy expects in `response.stream`: takes the next bytes, b"" at the end."""


class WholeResponse(http.Response):
    """A response that mitmproxy receives whole, whatever scripts set as its `stream`. `pass_whole` applies their
    callable to the whole body. Copies, and responses made from its state, are of mitmproxy's class."""

    from_state = http.Response.from_state

    def __init__(self, response: http.Response) -> None:
        self.data = response.data
        self.stream = response.stream

    @property
    def stream(self) -> bool:
        return False

    @stream.setter
    def stream(self, wanted: Stage | bool) -> None:
        self.stage = wanted if callable(wanted) else None


_whole = FlowState[bool]("whole")


def receive_whole(flow: http.HTTPFlow) -> None:
    """Do not stream an answer, whatever scripts want. The hook `response` must call `pass_whole`."""
    assert flow.response is not None
    _whole[flow] = True
    flow.response = WholeResponse(flow.response)


def keep_whole(flow: http.HTTPFlow) -> None:
    """Receive the answer whole also if a script has put another response in the place of a `WholeResponse`."""
    if flow in _whole and not isinstance(flow.response, WholeResponse):
        receive_whole(flow)


def pass_whole(flow: http.HTTPFlow) -> None:
    """Apply the script's callable to a complete answer, after the addon has processed it."""
    response = flow.response
    if not isinstance(response, WholeResponse) or response.stage is None or response.data.content is None:
        return
    stage, response.stage = response.stage, None
    try:
        response.data.content = _joined(stage(response.data.content)) + _joined(stage(b""))
    except Exception:
        logger.exception("a script's stream callable failed")
        # the script may have intended to remove a part of it
        response.data.content, response.data.status_code, response.data.reason = b"", 502, b"Bad Gateway"
    if b"transfer-encoding" not in names(response.headers):
        put(response.headers, b"content-length", b"%d" % len(response.data.content))


def _joined(given: bytes | Iterable[bytes]) -> bytes:
    return given if isinstance(given, bytes) else b"".join(given)


def is_stream(response: http.Response, *, asked: bool) -> bool:
    """Whether a model's answer is a stream: because a stream was `asked` for, or by its content type."""
    if not is_answer(response.status_code):
        return False
    return asked or (value(response.headers, b"content-type") or "").lower().startswith("text/event-stream")


def send_instead(flow: http.HTTPFlow, response: http.Response) -> None:
    """Send this response to the client instead of the answer whose head has just arrived. The answer's body is received
    and dropped, because a hook cannot stop an upstream."""
    body = [response.content or b""]
    response.data.content = None
    response.stream = lambda chunk: [body.pop()] if body else []
    flow.response = response


def comes_whole(flow: http.HTTPFlow, settings: Settings) -> bool:
    """Whether an answer must be complete before it is passed on: because of `graft_stream`, or because a `modify_body`
    rule, which needs a whole body, may match it."""
    if not settings.stream:
        return True
    addon = ctx.master.addons.get("modifybody")
    return addon is not None and any(True in _outcomes(rule.matches, flow) for rule in addon.replacements)


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


LARGE = 1024 * 1024
"""Bytes. Smaller bodies reach scripts, mitmweb and recordings whole."""

_CHANGE_BODIES = ("modify_body",)
_ANSWER_REQUESTS = ("block_list", "map_local", "map_remote", "server_replay")
"""Options of mitmproxy that need whole bodies, and options that act on a request once its body has arrived."""


_passes = FlowState[bool]("passes")


def stream_large(flow: http.HTTPFlow, settings: Settings) -> None:
    """Stream the request's body if it is large or of unknown length. The same will apply to the answer's."""
    if not settings.stream or _is_set(_CHANGE_BODIES):
        return
    _passes[flow] = True
    if _is_large(flow.request, unknown=True) and not _is_set(_ANSWER_REQUESTS):
        flow.request.stream = flow.request.stream or True


def stream_large_answer(flow: http.HTTPFlow) -> None:
    """Stream a large answer. JSON of unknown length is not streamed: most answers are such, and small."""
    response = flow.response
    if _passes.pop(flow) is None or response is None or response.data.content is not None:
        return
    is_json = (value(response.headers, b"content-type") or "").lower().startswith("application/json")
    if _is_large(response, unknown=not is_json):
        response.stream = response.stream or True


def _is_large(message: http.Message, *, unknown: bool) -> bool:
    length = value(message.headers, b"content-length") or ""
    return int(length) > LARGE if length.isdecimal() else unknown


def _is_set(names: tuple[str, ...]) -> bool:
    return any(getattr(ctx.options, name, None) for name in names)
