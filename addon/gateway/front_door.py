"""The start of a request, common to both front doors."""

from typing import Any

from starlette.requests import HTTPConnection, Request

from addon.gateway.callers import access_of, caller_of
from addon.gateway.conversations import Conversations
from addon.gateway.downloads import Download
from addon.gateway.engine import Engine
from addon.gateway.handover import Handover
from addon.gateway.upstream_factory import Caller
from addon.web.routing import ApiContext, parse


class FrontDoor:
    """`key`: the Gemini API key for callers that send none. `download`: fetches files that a request names by URLs;
    None if nothing does."""

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
        """The caller, the body's JSON with its model's own name, and the handover of the answer. Raises Problem."""
        caller, body = caller_of(request, api.settings.session, self.key), await request.body()
        document = self.with_model(parse(body)) if has_body else None
        return caller, document, self.handover(request, caller, path, body)

    def with_model(self, body: Any) -> Any:
        """The body with the model that its `model` stands for."""
        if not isinstance(body, dict) or not isinstance(name := body.get("model"), str):
            return body
        return {**body, "model": self.engine.settings.model(name)}

    def handover(self, request: HTTPConnection, caller: Caller, path: str, body: bytes) -> Handover:
        return self.engine.handover(caller, path, access_of(request).token, body)
