"""`/v1/conversations`: OpenAI's Conversations API, for conversations of `/v1/responses`."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from addon.core.dialects.responses.conversations import (
    conversation_document,
    input_page,
    read_added_items,
    read_conversation,
    read_metadata,
)
from addon.core.dialects.responses.items import Unseal
from addon.core.framing.documents import Document, encode
from addon.gateway.conversations import Conversation, Conversations, unknown_conversation
from addon.gateway.downloads import Download, with_files
from addon.gateway.front_door import LIST, DoorRoute, session_of
from addon.gateway.items import all_items, resolved
from addon.gateway.sealing import Sealing
from addon.web.api import ApiContext
from addon.web.problems import Problem, parse
from store.models import Response as Record

PATH = "/v1/conversations"
_ONE = f"{PATH}/{{conversation_id}}"
_ITEMS = "items"
_MESSAGE: Document = {"type": "message", "role": "user", "content": "I am in Tokyo."}
_METADATA = {"topic": "trip"}


class ConversationRoutes:
    """`download` fetches files that items name by URLs."""

    def __init__(self, conversations: Conversations, download: Download | None = None) -> None:
        self._conversations = conversations
        self._store = conversations.store
        self._download = download

    def routes(self) -> list[BaseRoute]:
        return [
            DoorRoute(
                "POST",
                PATH,
                self.create_conversation,
                "Begin a conversation",
                example={"items": [_MESSAGE], "metadata": _METADATA},
            ),
            DoorRoute("GET", _ONE, self.show_conversation, "Show a conversation"),
            DoorRoute(
                "POST",
                _ONE,
                self.change_conversation,
                "Change its metadata",
                example={"metadata": _METADATA},
                required=("metadata",),
            ),
            DoorRoute("DELETE", _ONE, self.delete_conversation, "Delete a conversation"),
            DoorRoute(
                "POST",
                f"{_ONE}/items",
                self.add_items,
                "Add items to it",
                example={"items": [_MESSAGE]},
                required=("items",),
            ),
            DoorRoute("GET", f"{_ONE}/items", self.list_items, "List its items", query=LIST),
            DoorRoute("GET", f"{_ONE}/items/{{item_id}}", self.show_item, "Show an item of it"),
            DoorRoute("DELETE", f"{_ONE}/items/{{item_id}}", self.remove_item, "Remove an item from it"),
        ]

    async def create_conversation(self, api: ApiContext, request: Request) -> Response:
        """At most 20 `items`, which come before the input of its first response, and `metadata`."""
        session, body = session_of(request, api.settings.session), parse(await request.body())
        body = await self._whole(session, body, api.settings.max_body)
        items, metadata = read_conversation(body, self._unseal(session))
        name = await self._conversations.begin(session, items, metadata)
        return await self._show(session, name)

    async def show_conversation(self, api: ApiContext, request: Request, conversation_id: str) -> Response:
        return await self._show(session_of(request, api.settings.session), conversation_id)

    async def change_conversation(self, api: ApiContext, request: Request, conversation_id: str) -> Response:
        session, body = session_of(request, api.settings.session), parse(await request.body())
        metadata = read_metadata(body)
        async with self._conversations.alone(session, conversation_id):
            conversation, _ = await self._find(session, conversation_id)
            await self._conversations.append(conversation, [], metadata=metadata)
        return await self._show(session, conversation_id)

    async def delete_conversation(self, api: ApiContext, request: Request, conversation_id: str) -> Response:
        """Its responses can still be shown and continued by their ids."""
        session = session_of(request, api.settings.session)
        async with self._conversations.alone(session, conversation_id):
            conversation, _ = await self._find(session, conversation_id)
            await self._conversations.end(conversation)
        return _json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, api: ApiContext, request: Request, conversation_id: str) -> Response:
        """At most 20 items, which come before the input of its next response."""
        session, body = session_of(request, api.settings.session), parse(await request.body())
        body = await self._whole(session, body, api.settings.max_body)
        items = read_added_items(body, self._unseal(session))
        async with self._conversations.alone(session, conversation_id):
            conversation, thread = await self._find(session, conversation_id)
            taken = set[str]()
            if any("id" in item for item in items):
                taken = {item["id"] for item in (await all_items(self._store, thread))[0]}
            added = await self._conversations.append(conversation, items, taken=taken)
        return _json(input_page(added, (), [("order", "asc")]))

    async def list_items(self, api: ApiContext, request: Request, conversation_id: str) -> Response:
        """All items, of its responses as well: newest first, or oldest first with `order=asc`. At most `limit` items
        (20; maximum 100), after the item `after`."""
        items, _ = await self._items(session_of(request, api.settings.session), conversation_id)
        return _json(input_page(items, (), request.query_params.multi_items()))

    async def show_item(self, api: ApiContext, request: Request, conversation_id: str, item_id: str) -> Response:
        items, _ = await self._items(session_of(request, api.settings.session), conversation_id)
        return _json(_one(items, item_id))

    async def remove_item(self, api: ApiContext, request: Request, conversation_id: str, item_id: str) -> Response:
        """Only an item that was added since its last response: what the model was told stays in its history."""
        session = session_of(request, api.settings.session)
        async with self._conversations.alone(session, conversation_id):
            conversation, thread = await self._find(session, conversation_id)
            items, new = await all_items(self._store, thread)
            if _one(items, item_id)["id"] not in new:
                words = f"Item with id '{item_id}' cannot be removed: a response of the conversation goes on from it"
                raise Problem(400, words, field="item_id", code="item_in_use")
            await self._conversations.append(conversation, [], removed=[item_id])
        return await self._show(session, conversation_id)

    async def _whole(self, session: str, body: Any, max_body: int) -> Any:
        """The body with the items and contents that it refers to. Raises Invalid, Problem."""
        given = await resolved(self._store, session, body, max_body, _ITEMS)
        return await with_files(given, self._download, max_body, _ITEMS)

    def _unseal(self, session: str) -> Unseal:
        return Sealing(self._store, session).unseal

    async def _find(self, session: str, name: str) -> tuple[Conversation, list[Record]]:
        """The conversation, and its thread. Raises Problem (404), StoreUnavailable."""
        if (head := await self._store.conversation(session, name)) is None:
            raise unknown_conversation(name)
        return await self._conversations.find(session, name, None), await self._store.history(session, head)

    async def _items(self, session: str, name: str) -> tuple[list[Document], set[str]]:
        _, thread = await self._find(session, name)
        return await all_items(self._store, thread)

    async def _show(self, session: str, name: str) -> Response:
        conversation, thread = await self._find(session, name)
        settings = conversation.settings
        created_at = thread[0].created_at if settings.created_at is None else settings.created_at
        return _json(conversation_document(name, created_at, settings.metadata or {}))


def _one(items: list[Document], item_id: str) -> Document:
    """Raises Problem (404)."""
    for item in items:
        if item["id"] == item_id:
            return item
    raise Problem(404, f"Item with id '{item_id}' not found.", field="item_id")


def _json(document: Mapping[str, Any]) -> Response:
    return Response(encode(dict(document)), media_type="application/json")
