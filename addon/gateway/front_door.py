"""The routes of the front doors, and the start of a request."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from addon.core.framing.documents import Document
from addon.gateway.callers import KEY_HEADER, SESSION_HEADER, access_of, caller_of
from addon.gateway.conversations import Conversations
from addon.gateway.downloads import Download
from addon.gateway.engine import Caller, Engine
from addon.gateway.handover import Handover
from addon.web.access import name_session
from addon.web.context import ApiContext
from addon.web.problems import parse, refused
from store.models import SESSION_PATTERN

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
    """A route for callers with the right `ask`. The endpoint gets the path's parameters by their names.

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
        caller, body = caller_of(request, api.settings.session, self.key), await request.body()
        document = self.with_model(parse(body)) if has_body else None
        return caller, document, self.handover(request, caller, path, body)

    def with_model(self, body: Any) -> Any:
        """The body with an alias in `model` resolved."""
        if not isinstance(body, dict) or not isinstance(name := body.get("model"), str):
            return body
        return {**body, "model": self.engine.settings.model(name)}

    def handover(self, request: HTTPConnection, caller: Caller, path: str, body: bytes) -> Handover:
        return self.engine.handover(caller, path, access_of(request).token, body)
