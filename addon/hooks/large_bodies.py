"""Streams large bodies of requests that the addon does not rewrite, such as uploads of files and results of batches.
mitmproxy alone would hold all of them in memory."""

from mitmproxy import ctx, http

from addon.hooks.headers import value
from addon.hooks.streams import stream_above
from addon.settings import Settings

LARGE = 1024 * 1024
"""Bytes. A smaller body comes whole to scripts, mitmweb and recordings, as any other."""

_CHANGE_BODIES = ("modify_body",)
_ANSWER_REQUESTS = ("block_list", "map_local", "map_remote", "server_replay")
"""Options of mitmproxy that need whole bodies, and those that act on a request once its body is there."""


def stream_large(flow: http.HTTPFlow, settings: Settings) -> None:
    """Stream the bodies of the request and its answer if they are large, or if the request's length is unknown."""
    if settings.stream == "off" or _is_set(_CHANGE_BODIES):
        return
    stream_above(flow, LARGE)
    length = value(flow.request.headers, b"content-length") or ""
    if not (length.isdecimal() and int(length) <= LARGE) and not _is_set(_ANSWER_REQUESTS):
        flow.request.stream = flow.request.stream or True


def _is_set(names: tuple[str, ...]) -> bool:
    return any(getattr(ctx.options, name, None) for name in names)
