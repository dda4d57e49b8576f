"""The files of the pages: style, scripts, and htmx, with its licence and origin."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.responses import FileResponse, Response

from addon.console.rendering import HEADERS
from addon.web.api import routes_of

public = routes_of("console", is_public=True)

FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
}
_FOLDER = Path(__file__).with_name("static")


def _shows(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def show() -> Response:
        # `no-cache`: another version of the proxy may be at this address later.
        return FileResponse(_FOLDER / name, headers=HEADERS | {"cache-control": "no-cache"}, media_type=media_type)

    return show


for _name, _kind in FILES.items():
    public.add_api_route(f"/console/static/{_name}", _shows(_name, _kind), include_in_schema=False)
