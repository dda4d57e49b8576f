"""Streams large bodies of requests that the addon does not rewrite, such as uploads of files and results of batches.
mitmproxy alone would hold all of them in memory."""

from mitmproxy import ctx, http

from addon.hooks.messages import FlowState, value
from addon.settings import Settings

LARGE = 1024 * 1024
"""Bytes. Smaller bodies reach scripts, mitmweb and recordings whole."""

_CHANGE_BODIES = ("modify_body",)
_ANSWER_REQUESTS = ("block_list", "map_local", "map_remote", "server_replay")
"""Options of mitmproxy that need whole bodies, and options that act on a request once its body has arrived."""


_passes = FlowState[bool]("passes")


def stream_large(flow: http.HTTPFlow, settings: Settings) -> None:
    """Stream the request's body if it is large or of unknown length. The same will apply to the answer's."""
    if settings.stream == "off" or _is_set(_CHANGE_BODIES):
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
