"""The routes of the control API and the console: the state that handlers share, callers' rights, refusals as problem
documents, strict JSON, the parts of the OpenAPI document that are not in the handlers' signatures, and the page that
shows it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import fastapi_offline
import pydantic_core
from fastapi import APIRouter, Body, Depends, Query, Security
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from addon.core.framing.documents import Document
from addon.monitoring.metrics import Metrics
from addon.monitoring.recent_requests import RecentRequests
from addon.settings import Settings
from addon.tools.base import ServerState
from addon.tools.mcp_pins import Pins
from addon.web.access import ANYONE, OWNER, Access, needs_of
from addon.web.audit import Audit
from addon.web.page_sessions import PageSessions
from addon.web.problems import MEDIA_TYPE, Dialect, Problem, ProblemBody, invalid, parse, refused
from addon.web.tokens import Tokens
from store.base import Store, UnknownCall
from store.models import Call, Owner, SessionName

type TryTool = Callable[[str, str, Document, Callable[[Owner], None]], Awaitable[Call]]
"""Takes the session, the tool's name, the arguments, and a function that raises if the caller may not try tools that
this owner runs. Raises Problem, StoreError."""


@dataclass(slots=True, kw_only=True)
class ApiContext:
    """`settings` is replaced when options change. `draining`: the proxy is about to end and starts no new turns.
    `active_requests`: the front doors' requests in progress. `ending`: set when the server stops, which ends long
    answers."""

    store: Store
    settings: Settings
    metrics: Metrics
    version: str
    tokens: Tokens
    audit: Audit
    page_sessions: PageSessions | None = None
    """None: no token is required."""
    pins: Pins | None = None
    shared: Callable[[], Sequence[Document]] = tuple
    """The declarations of the proxy's own tools."""
    origin: Callable[[str], Document | None] = lambda name: None
    """The source and the rules of one of these tools (`addon.control.views.Origin`)."""
    setting_rows: Callable[[], Sequence[Document]] = tuple
    """The proxy's options, each with its value and where it is set, without secrets."""
    server_states: Callable[[], Sequence[ServerState]] = tuple
    """The state of each MCP server."""
    recent: RecentRequests = field(default_factory=RecentRequests)
    """The last requests to models."""
    problems: Callable[[str, str, Document], Awaitable[Sequence[str]]] | None = None
    """The problems of arguments, by the schema of a session's tool."""
    tool_version: Callable[[str, str], Awaitable[str]] | None = None
    """The digest of a session's tool."""
    try_tool: TryTool | None = None
    """Starts a trial call of a session's tool."""
    restart_server: Callable[[str], Awaitable[bool]] | None = None
    """Restarts an MCP server. False: no such server."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False
    active_requests: int = 0

    def has_ended(self, scope: Scope) -> bool:
        """Whether a page sent this request, and its session has ended since. Raises OSError."""
        return self.page_sessions is not None and self.page_sessions.has_ended(dict(scope.get("headers", ())))

    def ends(self, caller: Access) -> Sequence[asyncio.Event]:
        """The events that end a long answer to this caller."""
        return [self.ending] if caller in (OWNER, ANYONE) else [self.ending, self.tokens.end(caller)]


@dataclass(frozen=True, slots=True)
class ExtraRoutes:
    """`public`: routes that need no token. `dialects`: by path, and for everything below it, the form of refusals for
    callers that do not know problem documents. `paths`: the part of the OpenAPI document for routes that are not
    FastAPI's."""

    routes: Sequence[BaseRoute] = ()
    public: Sequence[BaseRoute] = ()
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    paths: Mapping[str, Document] = field(default_factory=dict)

    def __or__(self, other: "ExtraRoutes") -> "ExtraRoutes":
        return ExtraRoutes(
            [*self.routes, *other.routes],
            [*self.public, *other.public],
            {**self.dialects, **other.dialects},
            {**self.paths, **other.paths},
        )

    @property
    def open_paths(self) -> list[str]:
        return [route.path for route in self.public if isinstance(route, Route)]

    def dialect(self, path: str) -> Dialect:
        for prefix, dialect in self.dialects.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return dialect
        return Problem.response


PROBLEM: dict[str, Any] = {
    "description": "A refusal: what is wrong, and in which field",
    "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}}},
}


async def _api(request: Request) -> ApiContext:
    api: ApiContext = request.scope["api"]
    return api


async def _caller(request: Request) -> Access:
    access: Access = request.scope["access"]
    return access


ApiDep = Annotated[ApiContext, Depends(_api)]
CallerDep = Annotated[Access, Depends(_caller)]


# --- rights ---------------------------------------------------------------------------------------------------------


async def _authorized(_: Annotated[Any, Security(HTTPBearer(scheme_name="bearer", auto_error=False))]) -> None:
    """Marks the routes that need rights, which are checked before FastAPI reads the body."""


def _check(caller: Access, route: APIRoute) -> None:
    """Raises Problem (403) if the caller lacks the route's rights, or if its token is for one session and the route
    does not keep it to that session."""
    caller.check(*needs_of(route.endpoint))
    if caller.session is not None and not any(one.call in _OF_A_SESSION for one in _all(route.dependant)):
        raise Problem(403, f"this token is only for the session {caller.session}, and this path belongs to no session")


async def _own_session(caller: CallerDep, session: SessionName) -> str:
    caller.check_session(session)
    return session


async def _own_call(api: ApiDep, caller: CallerDep, call_id: str) -> str:
    if caller.session is not None and (await api.store.find_call(call_id)).session != caller.session:
        raise UnknownCall
    return call_id


_OF_A_SESSION: set[Callable[..., Any] | None] = {_own_session, _own_call}
"""The dependencies that restrict a caller to its token's session."""

OwnSession = Annotated[str, Depends(_own_session)]
"""The session in the path."""
OwnCall = Annotated[str, Depends(_own_call)]
"""The id in the path, of a call that the caller may use."""


def own_query(model: type[BaseModel]) -> Any:
    """Marks a query with a `session`; for a token of one session, it is always that one."""
    return _own(model, Query())


def own_body(model: type[BaseModel]) -> Any:
    """As `own_query`, for a body."""
    return _own(model, Body())


def _own(model: type[BaseModel], place: Any) -> Any:
    async def own(caller: CallerDep, given: Annotated[model, place]) -> BaseModel:  # type: ignore[valid-type]
        return caller.in_session(given)

    _OF_A_SESSION.add(own)
    return Depends(own)


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for one in dependant.dependencies:
        yield from _all(one)


# --- routes ---------------------------------------------------------------------------------------------------------


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse(await self.body())


class _Route(APIRoute):
    """Turns every exception of a handler into a refusal in the caller's dialect."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        is_public = all(one.call is not _authorized for one in self.dependant.dependencies)

        async def answer(request: Request) -> Response:
            try:
                if not is_public:
                    _check(request.scope["access"], self)
                return await handle(_StrictRequest(request.scope, request.receive))
            except RequestValidationError as error:
                part = error.errors()[0]["loc"][0]
                return refused(invalid(error.errors(), part=part, known=self._known(part)), request.scope)
            except Exception as error:
                return refused(error, request.scope)

        return answer

    def _known(self, part: str) -> list[str]:
        """The names that a query or a body may have."""
        fields = [self.body_field] if part == "body" else [f for one in _all(self.dependant) for f in one.query_params]
        models = (field.field_info.annotation for field in fields if field is not None)
        return [name for model in models for name in getattr(model, "model_fields", ())]


def routes_of(tag: str, *, is_public: bool = False) -> APIRouter:
    """A router for a group of routes. `is_public`: they need no token."""
    dependencies = [] if is_public else [Depends(_authorized)]
    return APIRouter(tags=[tag], route_class=_Route, dependencies=dependencies, responses={"default": PROBLEM})


def reply(value: Any) -> Response:
    """A JSON answer from a pydantic model or plain data."""
    return Response(pydantic_core.to_json(value), media_type="application/json")


# --- the OpenAPI document -------------------------------------------------------------------------------------------


def answers(
    example: Any, model: Any = None, *, media_type: str = "application/json", **problems: str
) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an operation: an example of success, and its refusals, as `p404="why"`."""
    success = {"description": "Success", "content": {media_type: {"example": example}}}
    return {200: success if model is None else {**success, "model": model}, **_refusals(problems)}


def nothing(description: str, **problems: str) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an operation that answers 204."""
    return {204: {"description": description}, **_refusals(problems)}


def _refusals(problems: dict[str, str]) -> dict[int | str, dict[str, Any]]:
    return {int(name[1:]): {**PROBLEM, "description": why} for name, why in problems.items()}


def body_example(example: Any, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """For `openapi_extra`: an example of the body, and its schema if the handler's signature has none."""
    content = {"example": example} if schema is None else {"example": example, "schema": schema}
    return {"requestBody": {"content": {"application/json": content}}}


# --- the page /docs -------------------------------------------------------------------------------------------------

documentation = routes_of("documentation", is_public=True)
"""The page shows the API's description. People type the token into it, so all its files are served locally, and its
Content-Security-Policy allows no others."""

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


@documentation.get("/docs", include_in_schema=False)
async def show_page() -> Response:
    return Response(_PAGE, headers=_HEADERS, media_type="text/html")


@documentation.get("/docs/start.js", include_in_schema=False)
async def show_start() -> Response:
    return Response(_START, headers=_HEADERS, media_type="text/javascript")


def _shows(name: str) -> Callable[[], Awaitable[Response]]:
    path = Path(fastapi_offline.__file__).with_name("static") / name

    async def show() -> Response:
        return FileResponse(path, headers=_HEADERS)

    return show


for _name in ("swagger-ui-bundle.js", "swagger-ui.css"):
    documentation.add_api_route(f"/docs/{_name}", _shows(_name), include_in_schema=False)
