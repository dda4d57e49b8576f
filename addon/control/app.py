"""The control API as one ASGI application: the guard, then the routes, then the page that describes them.

FastAPI makes the OpenAPI document from the routes; the requests themselves do not pass through it (see `routing`).
"""

import importlib
from typing import Any

from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from addon.control.describe import PUBLIC
from addon.control.guard import Guard
from addon.control.loops import Loops, NoLoops
from addon.control.problems import Problem, ProblemBody
from addon.control.routes import GROUPS
from addon.control.routing import Api, DirectRoute, reply
from addon.metrics import Metrics
from addon.settings import Settings
from store.base import Store

_DESCRIPTION = (
    "Read the calls that were captured, answer them, and set tools. "
    "Every refusal is an `application/problem+json` that names what is wrong."
)


class ControlApp:
    """The ASGI application. It holds no connection and starts nothing: whoever serves it calls `stop` at the end."""

    def __init__(self, api: Api, token: str | None) -> None:
        self.api = api
        routes: list[DirectRoute] = []
        for group in GROUPS:
            routes += importlib.import_module(f"addon.control.routes.{group}").router.routes
        self.routes = [*routes, *_documentation(routes, api.version)]
        router = Router(self.routes, redirect_slashes=False, default=_not_found)
        self._guarded = Guard(router, settings=lambda: api.settings, token=token, open_paths=_open_paths(self.routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["api"] = self.api
        await self._guarded(scope, receive, send)

    def change(self, settings: Settings) -> None:
        """Go on with other settings, from the next request on."""
        self.api.settings = settings

    def stop(self) -> None:
        """End long polls and event streams: they answer with what they have."""
        self.api.stopping.set()


def create_app(
    *,
    store: Store,
    settings: Settings,
    token: str | None,
    metrics: Metrics,
    version: str,
    loops: Loops | None = None,
) -> ControlApp:
    """The control API over an open store. `token` None: nobody is asked for one. `loops` None: no loop runs here."""
    api = Api(store=store, settings=settings, metrics=metrics, loops=loops or NoLoops(), version=version)
    return ControlApp(api, token)


def describe(routes: list[DirectRoute], version: str) -> dict[str, Any]:
    """The OpenAPI document of the routes."""
    document = get_openapi(title="toolgraft", version=version, description=_DESCRIPTION, routes=routes)
    components = document.setdefault("components", {})
    _, problem = models_json_schema([(ProblemBody, "serialization")], ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update(problem["$defs"])
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}]
    return document


def _documentation(routes: list[DirectRoute], version: str) -> list[DirectRoute]:
    """`/openapi.json` and the page that shows it. Both hold nothing but what is in this program: no token is needed,
    so that a browser can open the page and be asked for one there."""
    made: list[dict[str, Any]] = []

    async def openapi() -> Response:
        if not made:
            made.append(describe(routes, version))
        return reply(made[0])

    async def docs() -> Response:
        return get_swagger_ui_html(openapi_url="openapi.json", title="toolgraft control API")

    return [
        DirectRoute("/openapi.json", openapi, include_in_schema=False, openapi_extra=PUBLIC),
        DirectRoute("/docs", docs, include_in_schema=False, openapi_extra=PUBLIC),
    ]


def _open_paths(routes: list[DirectRoute]) -> list[str]:
    return [route.path for route in routes if (route.openapi_extra or {}).get("security") == []]


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    problem = Problem(404, "there is nothing at this path: /docs lists what there is")
    await problem.response()(scope, receive, send)
