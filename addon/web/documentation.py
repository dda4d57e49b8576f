"""The page `/docs`, which shows the API's description.

The page is Swagger UI, and people type the token into it. So all its files are served locally, and its
Content-Security-Policy allows no others.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import fastapi_offline
from starlette.responses import FileResponse, Response

from addon.web.api import routes_of

public = routes_of("documentation", is_public=True)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>toolgraft control API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null});
"""
# Swagger UI's images are data URLs in its stylesheet
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}


@public.get("/docs", include_in_schema=False)
async def show_page() -> Response:
    return Response(_PAGE, headers=_HEADERS, media_type="text/html")


@public.get("/docs/start.js", include_in_schema=False)
async def show_start() -> Response:
    return Response(_START, headers=_HEADERS, media_type="text/javascript")


def _shows(name: str) -> Callable[[], Awaitable[Response]]:
    path = Path(fastapi_offline.__file__).with_name("static") / name

    async def show() -> Response:
        return FileResponse(path, headers=_HEADERS)

    return show


for _name in ("swagger-ui-bundle.js", "swagger-ui.css"):
    public.add_api_route(f"/docs/{_name}", _shows(_name), include_in_schema=False)
