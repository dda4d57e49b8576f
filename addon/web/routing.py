"""Turns requests into the arguments of handlers, without FastAPI's overhead.

Handlers are declared much as in a FastAPI application, and FastAPI makes the OpenAPI document from their signatures
(`addon.web.documentation`), which alone imports it. At run time `DirectRoute` calls them itself: FastAPI's machinery
(dependency solving, exit stacks, response models) costs more than the handlers, and the proxy shares the event loop.

A parameter of a handler is one of: `ApiDep`; `CallerDep`; `Request`; a path parameter; a frozen pydantic model
`Annotated[…, Query()]`; one `Annotated[…, Body()]`, whose default, if any, is used for an empty body. Anything else is
refused when the route is made. Handlers return ready responses.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args
from urllib.parse import parse_qsl

import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from addon.core.framing.documents import Document
from addon.metrics import Metrics
from addon.recent_requests import RecentRequests
from addon.settings import Settings
from addon.tools.mcp_pins import Pins
from addon.web.access import ANYONE, OWNER, SESSION_HEADER, Access, Right, needs_of
from addon.web.audit import Audit
from addon.web.disconnect import EndEvent
from addon.web.page_sessions import PageSessions
from addon.web.problems import Problem, invalid, problem_of, refusal
from addon.web.tokens import Tokens
from store.base import Store, UnknownCall
from store.models import Call, Owner

_log = logging.getLogger(__name__)

_LARGE = 256 * 1024
"""After parsing a body of this many bytes, other tasks run first. A thread would not help: the parser holds the GIL."""

_QUERIES = 8
"""The number of queries of a route that are remembered, as frozen models: clients poll with the same ones."""


type TryTool = Callable[[str, str, Document, Callable[[Owner], None]], Awaitable[Call]]
"""With the session, the tool's name and the arguments. The function raises if the caller may not try what this owner
runs. Raises Problem, StoreError."""


@dataclass(slots=True, kw_only=True)
class ApiContext:
    """The state that all handlers share. `settings` is replaced when options change. `draining`: the proxy is about to
    end and starts no new turns. `active_requests`: the front doors' requests in progress. `ending`: set when the
    server stops, which ends long answers."""

    store: Store
    settings: Settings
    metrics: Metrics
    version: str
    tokens: Tokens
    audit: Audit
    page_sessions: PageSessions | None = None
    """None: no token is required, so pages need none either."""
    pins: Pins | None = None
    shared: Callable[[], Sequence[Document]] = tuple
    """The declarations of the proxy's own tools."""
    origin: Callable[[str], Document | None] = lambda name: None
    """Where one of them comes from, and its rules (`addon.control.views.Origin`)."""
    setting_rows: Callable[[], Sequence[Document]] = tuple
    """The proxy's options, each with its value and where it is set, without secrets."""
    processes: Callable[[str], Awaitable[Sequence[Document]]] | None = None
    """What each of the proxy's processes says of itself, or of the request with this id. Raises OSError."""
    recent: RecentRequests = field(default_factory=RecentRequests)
    """The last requests to models of this process."""
    problems: Callable[[str, str, Document], Awaitable[Sequence[str]]] | None = None
    """What does not fit the schema of a session's tool in these arguments of it."""
    tool_version: Callable[[str, str], Awaitable[str]] | None = None
    """The digest of a session's tool."""
    try_tool: TryTool | None = None
    """Begins a call of a session's tool for somebody who tries it."""
    restart_server: Callable[[str], Awaitable[bool]] | None = None
    """Restarts an MCP server in all processes of the proxy. Returns whether there is such a server. Raises OSError."""
    ending: EndEvent = field(default_factory=EndEvent)
    draining: bool = False
    active_requests: int = 0

    def has_ended(self, scope: Scope) -> bool:
        """Whether this request was a page's, and the page's session has ended since. Raises OSError."""
        return self.page_sessions is not None and self.page_sessions.has_ended(dict(scope.get("headers", ())))

    def ends(self, caller: Access) -> Sequence[EndEvent]:
        """The events that end a long answer to this caller."""
        return [self.ending] if caller in (OWNER, ANYONE) else [self.ending, self.tokens.end(caller)]


def _api_of(request: Request) -> ApiContext:
    api: ApiContext = request.scope["api"]
    return api


ApiDep = Annotated[ApiContext, _api_of]


def _access_of(request: Request) -> Access:
    access: Access = request.scope["access"]
    return access


CallerDep = Annotated[Access, _access_of]


class Body:
    """Marks the parameter that the body is read into."""


class Query:
    """Marks the parameter that the query is read into."""


def reply(value: Any, status: int = 200) -> Response:
    """A JSON answer from a pydantic model or plain data."""
    return Response(pydantic_core.to_json(value), status, media_type="application/json")


class DirectRoute(Route):
    """`described`: what the OpenAPI document says of it, in FastAPI's words."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(path, endpoint)
        self.methods = set(kwargs.get("methods") or ["GET"])
        self.openapi_extra = kwargs.get("openapi_extra")
        self.summary = kwargs.get("summary")
        self.described = kwargs
        is_open = (self.openapi_extra or {}).get("security") == []
        self.app = _direct(endpoint, set(self.param_convertors), None if is_open else needs_of(endpoint))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] not in self.methods:
            routes = (r for r in scope["router"].routes if isinstance(r, DirectRoute))
            allowed = {method for route in routes if route.path == self.path for method in route.methods or ()}
            allow = ", ".join(sorted(allowed))
            problem = Problem(
                405, f"{scope['method']} is not supported at this path. Use {allow}", headers={"Allow": allow}
            )
            await refusal(problem, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)


class IndexedRouter(Router):
    """Finds a path without parameters in an index. The patterns of all routes before it take longer than the rest of
    the way to the endpoint."""

    def __init__(self, routes: Sequence[BaseRoute], default: ASGIApp) -> None:
        super().__init__(routes, redirect_slashes=False, default=default)
        self._by_path: dict[tuple[str, str], tuple[BaseRoute, Scope]] = {}
        for route in routes:
            if isinstance(route, DirectRoute) and not route.param_convertors:
                for method in route.methods or ():
                    self._by_path[method, route.path] = self._first(method, route.path)

    def _first(self, method: str, path: str) -> tuple[BaseRoute, Scope]:
        scope = {"type": "http", "method": method, "path": path}
        matches = ((route, *route.matches(scope)) for route in self.routes)
        return next((route, found) for route, match, found in matches if match is Match.FULL)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = None
        if scope["type"] == "http" and not scope.get("root_path"):
            known = self._by_path.get((scope["method"], scope["path"]))
        if known is None:
            await super().app(scope, receive, send)
            return
        route, found = known
        scope.update(found, path_params={**found["path_params"]}, route=route, router=self)
        await route.handle(scope, receive, send)


def _direct(
    endpoint: Callable[..., Awaitable[Response]], path_names: set[str], needs: tuple[Right, ...] | None
) -> Callable[..., Awaitable[None]]:
    """`needs` None: the route needs no token."""
    binders, body_name, read_body = _bind(endpoint, path_names)

    async def handle(request: Request) -> Response:
        if needs is not None:
            _access_of(request).check(*needs)
        arguments = {name: bind(request) for name, bind in binders.items()}
        if read_body is not None:
            body = await _body_of(request)
            arguments[body_name] = read_body(body)
            if len(body) >= _LARGE:
                await asyncio.sleep(0)
        if needs is not None and _access_of(request).session is not None:
            await _restrict_to_session(request, arguments, by_header="ask" in needs)
        return await endpoint(**arguments)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await handle(Request(scope, receive))
        except Exception as error:
            problem = problem_of(error)
            if problem.status >= 500:
                scope["api"].metrics.error("store" if problem.status == 503 else "control")
            response = refusal(problem, scope)
        try:
            await response(scope, receive, send)
        except Exception:
            _log.exception("an answer of the control API broke off")
            raise

    return app


async def _body_of(request: Request) -> bytes:
    """The whole body, which nearly always is one message: starlette's own method reads it through two generators.
    Raises ClientDisconnect."""
    pieces: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _restrict_to_session(request: Request, arguments: dict[str, Any], *, by_header: bool) -> None:
    """Restrict a caller whose token is for one session to that session, which is also the default. `by_header`: the
    request names its session in a header. Raises Problem (403), UnknownCall."""
    access, bound = _access_of(request), by_header
    own = access.session
    assert own is not None
    if by_header:
        name_session(request.scope)
    for name, value in arguments.items():
        if name == "session":
            access.check_session(value)
        elif name == "call_id":
            if (await _api_of(request).store.find_call(value)).session != own:
                raise UnknownCall
        elif isinstance(value, BaseModel) and "session" in type(value).model_fields:
            access.check_session(dict(value)["session"] or own)
            arguments[name] = value.model_copy(update={"session": own})
        else:
            continue
        bound = True
    if not bound:
        raise Problem(403, f"this token is only for the session {own}, and this path belongs to no session")


def name_session(scope: Scope) -> None:
    """Let a request whose caller is bound to a session name that session in its header. Raises Problem (403)."""
    access: Access = scope["access"]
    if access.session is None:
        return
    header = SESSION_HEADER.encode()
    others = []
    for name, value in scope["headers"]:
        if name == header:
            access.check_session(value.decode("latin-1"))
        else:
            others.append((name, value))
    scope["headers"] = [*others, (header, access.session.encode())]


type _Binders = dict[str, Callable[[Request], Any]]


def _bind(endpoint: Callable[..., Any], path_names: set[str]) -> tuple[_Binders, str, Callable[[bytes], Any] | None]:
    """For each argument a function that makes it from the request, and the argument for the body. Raises TypeError."""
    binders: _Binders = {}
    body_name, read_body = "", None
    for name, parameter in inspect.signature(endpoint, eval_str=True).parameters.items():
        annotation = parameter.annotation
        metadata = get_args(annotation)[1:]
        if annotation is Request:
            binders[name] = lambda request: request
        elif annotation == ApiDep:
            binders[name] = _api_of
        elif annotation == CallerDep:
            binders[name] = _access_of
        elif name in path_names:
            binders[name] = _path_binder(name, annotation)
        elif any(isinstance(m, Body) for m in metadata):
            body_name, read_body = name, _body_reader(annotation, parameter.default)
        elif any(isinstance(m, Query) for m in metadata):
            binders[name] = _query_binder(annotation)
        else:
            raise TypeError(f"{endpoint.__module__}.{endpoint.__name__}: {name} cannot be filled from a request")
    return binders, body_name, read_body


def _path_binder(name: str, annotation: Any) -> Callable[[Request], Any]:
    validate = TypeAdapter(annotation).validator.validate_python

    def bind(request: Request) -> Any:
        try:
            return validate(request.scope["path_params"][name])
        except ValidationError as error:
            raise invalid(error, name=name) from None

    return bind


def _query_binder(annotation: Any) -> Callable[[Request], Any]:
    validate = TypeAdapter(annotation).validator.validate_python
    known = list(get_args(annotation)[0].model_fields)

    @functools.lru_cache(maxsize=_QUERIES)
    def read(query: bytes) -> Any:
        return validate(dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)))

    def bind(request: Request) -> Any:
        try:
            return read(request.scope["query_string"])
        except ValidationError as error:
            raise invalid(error, known=known) from None

    return bind


def _body_reader(annotation: Any, default: Any) -> Callable[[bytes], Any]:
    validate = TypeAdapter(annotation).validator.validate_python
    known = list(getattr(get_args(annotation)[0], "model_fields", ()))

    def read(body: bytes) -> Any:
        if not body and default is not inspect.Parameter.empty:
            return default
        try:
            return validate(parse(body))
        except ValidationError as error:
            raise invalid(error, known=known) from None

    return read


def parse(body: bytes) -> Any:
    """The JSON of a body: strict (no NaN, no lone surrogates). Raises Problem (400).

    A number too large for a double becomes infinity. Finding those here would take longer than everything else, so a
    body is checked where it is stored (`storable_json`).
    """
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, f"the body is not JSON that can be stored: {error}") from None
