"""The control API as one ASGI application: the guard, and FastAPI with the routes and their documentation."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from addon.control.routes import approvals, calls, events, proxy, requests, servers, sessions, tokens, tools
from addon.core.framing.documents import Document
from addon.monitoring.metrics import Metrics
from addon.monitoring.recent_requests import RecentRequests
from addon.settings import Settings
from addon.tools.base import ServerState
from addon.tools.mcp_pins import Pins
from addon.web.api import ApiContext, ExtraRoutes, TryTool, documentation
from addon.web.audit import Audit
from addon.web.guard import Guard
from addon.web.page_sessions import PageSessions
from addon.web.problems import Problem, ProblemBody, refusal
from addon.web.tokens import Tokens
from store.base import Store

_DESCRIPTION = (
    "Read captured calls, answer them, and set tools. "
    "Every refusal is an `application/problem+json` document that names what is wrong."
)
_OPENAPI = "/openapi.json"

ROUTERS = (
    calls.router,
    calls.workers,
    approvals.router,
    sessions.router,
    tools.router,
    tools.tries,
    sessions.turns,
    requests.router,
    events.router,
    tokens.router,
    servers.mcp_tools,
    servers.router,
    proxy.settings,
    proxy.router,
)
"""Requests are matched in this order, the most used first."""


class ControlApp:
    """The ASGI application. It opens no connection and starts no task; its server calls `stop` at the end."""

    def __init__(self, api: ApiContext, token: str | None, extra_routes: ExtraRoutes) -> None:
        self.api = api
        own = ExtraRoutes(
            [route for router in ROUTERS for route in router.routes],
            [*proxy.public.routes, *documentation.routes],
        )
        self.extra_routes = extra_routes
        self.served = own | extra_routes
        self.fastapi = _App(self.served, api.version)
        self._guarded = Guard(
            self.fastapi,
            settings=lambda: api.settings,
            token=token,
            tokens=api.tokens,
            page_sessions=api.page_sessions,
            open_paths=[*self.served.open_paths, _OPENAPI],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["api"] = self.api
        scope["dialect"] = self.extra_routes.dialect(scope.get("path", ""))
        await self._guarded(scope, receive, send)

    def change(self, settings: Settings) -> None:
        """Use these settings from the next request on."""
        self.api.settings = settings

    def drain(self) -> None:
        """Refuse new turns of the front doors."""
        self.api.draining = True

    def stop(self) -> None:
        """End long polls and event streams."""
        self.api.ending.set()


def create_app(
    *,
    store: Store,
    settings: Settings,
    token: str | None,
    metrics: Metrics,
    version: str,
    extra_routes: ExtraRoutes | None = None,
    pins: Pins | None = None,
    shared: Callable[[], Sequence[Document]] = tuple,
    origin: Callable[[str], Document | None] = lambda name: None,
    server_states: Callable[[], Sequence[ServerState]] = tuple,
    problems: Callable[[str, str, Document], Awaitable[Sequence[str]]] | None = None,
    tool_version: Callable[[str, str], Awaitable[str]] | None = None,
    try_tool: TryTool | None = None,
    restart_server: Callable[[str], Awaitable[bool]] | None = None,
    recent: RecentRequests | None = None,
    setting_rows: Callable[[], Sequence[Document]] = tuple,
) -> ControlApp:
    """The control API over an open store. `token` None: no token is required. `extra_routes`: served at the same port.
    `pins`: the accepted tools of MCP servers. The other arguments are fields of `ApiContext`."""
    tokens = Tokens(settings.state)
    api = ApiContext(
        store=store,
        settings=settings,
        metrics=metrics,
        version=version,
        tokens=tokens,
        page_sessions=None if token is None else PageSessions(settings.state, token, tokens, lambda: store.secret),
        audit=Audit(settings.state, durable=settings.durability == "power"),
        pins=pins,
        shared=shared,
        origin=origin,
        server_states=server_states,
        recent=recent or RecentRequests(),
        problems=problems,
        tool_version=tool_version,
        try_tool=try_tool,
        restart_server=restart_server,
        setting_rows=setting_rows,
    )
    return ControlApp(api, token, extra_routes or ExtraRoutes())


class _App(FastAPI):
    def __init__(self, served: ExtraRoutes, version: str) -> None:
        super().__init__(
            title="toolgraft",
            version=version,
            description=_DESCRIPTION,
            openapi_url=_OPENAPI,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={405: _wrong_method},
            routes=[*served.public, *served.routes],
        )
        self.router.default = _unknown_path
        self._others = served.paths

    def openapi(self) -> dict[str, Any]:
        """The document, with the routes that are not FastAPI's and the form of refusals."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["paths"] |= self._others
            document["components"]["schemas"][ProblemBody.__name__] = ProblemBody.model_json_schema()
        return super().openapi()


async def _wrong_method(request: Request, _: Exception) -> Response:
    scope = request.scope
    routes = (route for route in scope["router"].routes if isinstance(route, Route))
    found = (route.methods or () for route in routes if route.matches(scope)[0] is not Match.NONE)
    allow = ", ".join(sorted({method for methods in found for method in methods}))
    words = f"{scope['method']} is not supported at this path. Use {allow}"
    return refusal(Problem(405, words, headers={"Allow": allow}), scope)


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    words = "unknown path: /docs lists the paths"
    beginning = "/".join(scope["path"].split("/")[:3])  # such as /v1/responses
    paths = (route.path for route in scope["router"].routes if isinstance(route, Route))
    if near := sorted({path for path in paths if path == beginning or path.startswith(f"{beginning}/")}):
        words = f"unknown path. There are {', '.join(near)}; /docs describes them"
    await refusal(Problem(404, words), scope)(scope, receive, send)
