"""The API's description: `/openapi.json`, and the page `/docs` that shows it.

The page is Swagger UI, and people type the token into it. So all its files are served from here, its
Content-Security-Policy allows no others, and it works without a network. The description needs no token, because it
contains only what is public in this program.
"""

import functools
import importlib.util
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from addon.web.describe import PUBLIC, add_refusals
from addon.web.problems import ProblemBody
from addon.web.routing import ApiDep, Body, CallerDep, DirectRoute, Query, reply

_DESCRIPTION = (
    "Read captured calls, answer them, and set tools. "
    "Every refusal is an `application/problem+json` document that names what is wrong."
)

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


def describe(routes: list[DirectRoute], version: str) -> dict[str, Any]:
    """The OpenAPI document of the routes."""
    from fastapi.openapi.utils import get_openapi  # a sixth of a start that is rarely asked for the document

    described = [_in_fastapi(route) for route in routes]
    document = get_openapi(title="toolgraft", version=version, description=_DESCRIPTION, routes=described)
    for operations in document["paths"].values():
        for operation in operations.values():
            add_refusals(operation)
    components = document.setdefault("components", {})
    _, problem = models_json_schema([(ProblemBody, "serialization")], ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update(problem["$defs"])
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}]
    return document


def _in_fastapi(route: DirectRoute) -> Any:
    """FastAPI's route for the same operation."""
    from fastapi import params
    from fastapi.routing import APIRoute

    async def endpoint() -> None: ...

    signature = inspect.signature(route.endpoint, eval_str=True)
    parameters = []
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        if annotation in (ApiDep, CallerDep):
            continue
        marks = get_args(annotation)[1:]
        for mark, theirs in ((Body, params.Body), (Query, params.Query)):
            if any(isinstance(one, mark) for one in marks):
                annotation = Annotated[get_args(annotation)[0], theirs()]
        parameters.append(parameter.replace(annotation=annotation))
    endpoint.__name__, endpoint.__doc__ = route.endpoint.__name__, route.endpoint.__doc__
    endpoint.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return APIRoute(route.path, endpoint, **route.described)


def documentation(routes: list[DirectRoute], version: str) -> list[DirectRoute]:
    """The routes that serve the description of the given routes."""
    made: list[dict[str, Any]] = []

    async def openapi() -> Response:
        if not made:
            made.append(describe(routes, version))
        return reply(made[0])

    return [
        _public("/openapi.json", openapi),
        _public("/docs", _shows(lambda: _PAGE, "text/html")),
        _public("/docs/start.js", _shows(lambda: _START, "text/javascript")),
        _public("/docs/swagger-ui-bundle.js", _shows(lambda: _swagger("swagger-ui-bundle.js"), "text/javascript")),
        _public("/docs/swagger-ui.css", _shows(lambda: _swagger("swagger-ui.css"), "text/css")),
    ]


def _public(path: str, endpoint: Callable[[], Awaitable[Response]]) -> DirectRoute:
    return DirectRoute(path, endpoint, include_in_schema=False, openapi_extra=PUBLIC)


def _shows(content: Callable[[], str | bytes], media_type: str) -> Callable[[], Awaitable[Response]]:
    headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}

    async def show() -> Response:
        return Response(content(), headers=headers, media_type=media_type)

    return show


@functools.cache
def _swagger(name: str) -> bytes:
    """A file of Swagger UI. The package that contains it is not imported."""
    found = importlib.util.find_spec("fastapi_offline")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0], "static", name).read_bytes()
