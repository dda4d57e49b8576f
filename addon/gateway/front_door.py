"""The routes of the front doors, and the start of a request."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from addon.core.dialects.responses.errors import Invalid
from addon.core.framing.documents import Document
from addon.core.history.keys import sender_of
from addon.gateway.conversations import Conversations
from addon.gateway.downloads import Download
from addon.gateway.engine import Caller, Engine
from addon.gateway.failures import TurnFailed
from addon.gateway.handover import Handover
from addon.settings import Settings
from addon.web.access import Access, name_session
from addon.web.api import ApiContext
from addon.web.problems import Problem, parse, refused
from store.models import SESSION_FORM, SESSION_NAME, SESSION_PATTERN

SESSION_HEADER = "x-graft-session"
KEY_HEADER = "x-goog-api-key"
_NO_KEY = (
    f"no Gemini API key: send one as {KEY_HEADER}, or start the proxy with GEMINI_API_KEY or GOOGLE_API_KEY in its "
    "environment"
)
_BAD_KEY = (
    f"the Gemini API key, from {KEY_HEADER} or the proxy's environment, has characters that a header cannot have: "
    "use printable ASCII"
)


def session_of(request: HTTPConnection, default: str) -> str:
    """The session in the request's header, else the default. Raises Problem (400)."""
    session = request.headers.get(SESSION_HEADER, default)
    if not SESSION_NAME.fullmatch(session):
        raise Problem(400, f"{SESSION_HEADER}: {session!r} must be {SESSION_FORM}", field=SESSION_HEADER)
    return session


def access_of(request: HTTPConnection) -> Access:
    """The caller's rights, as the guard determined them."""
    access: Access = request.scope["access"]
    return access


def caller_of(request: HTTPConnection, settings: Settings, key: str) -> Caller:
    """`key`: of a request without a header for it. Raises Problem (400, 401)."""
    named = session_of(request, settings.session)
    key = request.headers.get(KEY_HEADER, "").strip() or key
    if not key:
        raise Problem(401, _NO_KEY, code="invalid_api_key")
    if not (key.isascii() and key.isprintable()):  # the HTTP client's error would contain the key
        raise Problem(401, _BAD_KEY, code="invalid_api_key")
    client = request.client
    address = (client.host, client.port) if client else ("127.0.0.1", 0)
    sender = sender_of(request.headers.raw, settings.user_headers, access_of(request).token)
    return Caller(named, key, address, request.headers.get("user-agent"), sender)


LIST: Mapping[str, Document] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string", "description": "An item's id."},
}
"""The query parameters of lists of items."""
_NO_QUERY: Mapping[str, Document] = {}
_HEADERS = [
    {
        "name": SESSION_HEADER,
        "in": "header",
        "description": "The session; the proxy's own (`graft_session`) if absent.",
        "schema": {"type": "string", "pattern": SESSION_PATTERN},
    },
    {
        "name": KEY_HEADER,
        "in": "header",
        "description": "The Gemini API key; if absent, the key from the proxy's environment.",
        "schema": {"type": "string"},
    },
]


class DoorRoute(Route):
    """A route for callers with the right `ask`. The endpoint gets the path's parameters by their names, and may raise
    Invalid and TurnFailed, besides what every route may raise.

    The other arguments, and the endpoint's docstring, are for the OpenAPI document. `example`: an example body, in the
    format of the API that the front door implements; `required`: its required fields. `query`: parameters by their
    schemas."""

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Awaitable[Response]],
        summary: str,
        *,
        example: Document | None = None,
        required: Sequence[str] = (),
        query: Mapping[str, Document] = _NO_QUERY,
    ) -> None:
        async def answer(request: Request) -> Response:
            try:
                access_of(request).check("ask")
                name_session(request.scope)
                return await endpoint(request.scope["api"], request, **request.path_params)
            except (Invalid, TurnFailed) as error:
                refuse: Callable[[Exception], Response] = request.scope["dialect"]
                return refuse(error)
            except Exception as error:
                return refused(error, request.scope)

        super().__init__(path, answer)
        self.method, self.methods = method, {method}
        self.summary = summary
        in_path = [{"name": name, "in": "path", "required": True} for name in self.param_convertors]
        in_query = [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
        self.operation: Document = {
            "tags": ["front doors"],
            "summary": summary,
            "description": inspect.getdoc(endpoint) or "",
            "security": [{"bearer": []}],
            "parameters": [*_HEADERS, *({**one, "schema": {"type": "string"}} for one in in_path), *in_query],
            "responses": {
                "200": {"description": "Success"},
                "default": {"description": "A refusal, in the API's form"},
            },
        }
        if example is not None:
            content = {"schema": {"type": "object", "required": list(required)}, "example": example}
            self.operation["requestBody"] = {"required": True, "content": {"application/json": content}}


def paths_of(routes: Sequence[BaseRoute]) -> dict[str, Document]:
    """The routes' part of the OpenAPI document."""
    paths: dict[str, Document] = {}
    for route in routes:
        if isinstance(route, DoorRoute):
            paths.setdefault(route.path_format, {})[route.method.lower()] = route.operation
    return paths


class FrontDoor:
    """`key`: the Gemini API key for callers that send none. `download`: fetches files that a request names by URLs;
    None: not supported."""

    def __init__(
        self, engine: Engine, conversations: Conversations, key: str, download: Download | None = None
    ) -> None:
        self.download = download
        self.engine = engine
        self.conversations = conversations
        self.store = conversations.store
        self.key = key

    async def receive(
        self, request: Request, api: ApiContext, path: str, *, has_body: bool = True
    ) -> tuple[Caller, Any, Handover]:
        """The caller, the body's JSON with the model's alias resolved, and the handover of the answer. Raises
        Problem."""
        caller, body = caller_of(request, api.settings, self.key), await request.body()
        document = self.with_model(parse(body)) if has_body else None
        return caller, document, self.engine.handover(caller, path, body)

    def with_model(self, body: Any) -> Any:
        """The body with an alias in `model` resolved."""
        if not isinstance(body, dict) or not isinstance(name := body.get("model"), str):
            return body
        return {**body, "model": self.engine.settings.model(name)}
