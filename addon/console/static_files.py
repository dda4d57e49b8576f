"""The files of the pages: style, scripts, and htmx, whose licence and origin are beside it."""

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.responses import Response

from addon.console.rendering import HEADERS
from addon.web.describe import PUBLIC
from addon.web.routing import DirectRoute

FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
}
_FOLDER = Path(__file__).with_name("static")


def static_files() -> list[DirectRoute]:
    return [
        DirectRoute(f"/console/static/{name}", _shows(name, kind), include_in_schema=False, openapi_extra=PUBLIC)
        for name, kind in FILES.items()
    ]


def _shows(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def show() -> Response:
        # `no-cache`: another version of the proxy may be at this address tomorrow.
        return Response(_content(name), headers=HEADERS | {"cache-control": "no-cache"}, media_type=media_type)

    return show


@functools.cache
def _content(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
