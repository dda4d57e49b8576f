"""`/v1/conversations`: OpenAI's Conversations API, for conversations of `/v1/responses`."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from addon.core.dialects.responses import (
    Invalid,
    conversation_document,
    input_page,
    read_added_items,
    read_conversation,
    read_metadata,
)
from addon.core.dialects.responses.items import Unseal
from addon.core.framing.documents import Document, encode
from addon.gateway import conversation_examples as examples
from addon.gateway.callers import session_of
from addon.gateway.conversation_items import all_items
from addon.gateway.conversations import Conversation, Conversations, unknown_conversation
from addon.gateway.describe import CONVERSATION_BODY, IN_OPENAI_S_WORDS, ITEMS_BODY, METADATA_BODY, parameters
from addon.gateway.downloads import Download, with_files
from addon.gateway.failures import in_openai_s_words
from addon.gateway.item_references import resolved
from addon.gateway.responses_examples import LIST
from addon.gateway.sealing import Sealing
from addon.web.access import needs
from addon.web.describe import Group, answers, body_example
from addon.web.problems import Problem
from addon.web.routing import ApiDep, parse
from store.models import Response as Record

PATH = "/v1/conversations"
_ONE = f"{PATH}/{{conversation_id}}"
_NONE = "No such conversation, or no such item in it"
_ITEMS = "items"
_BUSY = "Another request of the conversation is running, or has appended to it"


def conversation_routes(conversations: Conversations, download: Download | None = None) -> Group:
    """`download` fetches files that items name by URLs."""
    routes, router = _Routes(conversations, download), Group("front doors")

    @router.post(
        PATH,
        summary="Begin a conversation",
        responses=answers(examples.SHOWN, refused=IN_OPENAI_S_WORDS),
        openapi_extra=body_example(examples.BEGUN, CONVERSATION_BODY) | parameters(),
    )
    @needs("ask")
    async def create_conversation(api: ApiDep, request: Request) -> Response:
        """At most 20 `items`, which come before the input of its first response, and `metadata`."""
        session, body = session_of(request, api.settings.session), parse(await request.body())
        try:
            body = await routes.whole(session, body, api.settings.max_body)
            items, metadata = read_conversation(body, routes.unseal(session))
            name = await conversations.begin(session, items, metadata)
            return await routes.show(session, name)
        except Invalid as error:
            return in_openai_s_words(error)

    @router.get(
        _ONE,
        summary="Show a conversation",
        responses=answers(examples.SHOWN, refused=IN_OPENAI_S_WORDS, p404=_NONE),
        openapi_extra=parameters(),
    )
    @needs("ask")
    async def show_conversation(api: ApiDep, request: Request, conversation_id: str) -> Response:
        return await routes.show(session_of(request, api.settings.session), conversation_id)

    @router.post(
        _ONE,
        summary="Change its metadata",
        responses=answers(examples.SHOWN, refused=IN_OPENAI_S_WORDS, p404=_NONE, p409=_BUSY),
        openapi_extra=body_example({"metadata": {"topic": "trip"}}, METADATA_BODY) | parameters(),
    )
    @needs("ask")
    async def change_conversation(api: ApiDep, request: Request, conversation_id: str) -> Response:
        session, body = session_of(request, api.settings.session), parse(await request.body())
        try:
            metadata = read_metadata(body)
            with conversations.alone(session, conversation_id):
                conversation, _ = await routes.find(session, conversation_id)
                await conversations.append(conversation, [], metadata=metadata)
            return await routes.show(session, conversation_id)
        except Invalid as error:
            return in_openai_s_words(error)

    @router.delete(
        _ONE,
        summary="Delete a conversation",
        responses=answers(examples.DELETED, refused=IN_OPENAI_S_WORDS, p404=_NONE, p409=_BUSY),
        openapi_extra=parameters(),
    )
    @needs("ask")
    async def delete_conversation(api: ApiDep, request: Request, conversation_id: str) -> Response:
        """Its responses can still be shown and continued by their ids."""
        session = session_of(request, api.settings.session)
        with conversations.alone(session, conversation_id):
            conversation, _ = await routes.find(session, conversation_id)
            await conversations.end(conversation)
        return _json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    _add_item_routes(router, routes)
    return router


def _add_item_routes(router: Group, routes: "_Routes") -> None:
    conversations = routes.conversations

    @router.post(
        f"{_ONE}/items",
        summary="Add items to it",
        responses=answers(examples.LISTED, refused=IN_OPENAI_S_WORDS, p404=_NONE, p409=_BUSY),
        openapi_extra=body_example(examples.ADDED, ITEMS_BODY) | parameters(),
    )
    @needs("ask")
    async def add_items(api: ApiDep, request: Request, conversation_id: str) -> Response:
        """At most 20 items, which come before the input of its next response."""
        session, body = session_of(request, api.settings.session), parse(await request.body())
        try:
            body = await routes.whole(session, body, api.settings.max_body)
            items = read_added_items(body, routes.unseal(session))
            with conversations.alone(session, conversation_id):
                conversation, thread = await routes.find(session, conversation_id)
                taken = set[str]()
                if any("id" in item for item in items):
                    taken = {item["id"] for item in (await all_items(conversations.store, thread))[0]}
                added = await conversations.append(conversation, items, taken=taken)
            return _json(input_page(added, (), [("order", "asc")]))
        except Invalid as error:
            return in_openai_s_words(error)

    @router.get(
        f"{_ONE}/items",
        summary="List its items",
        responses=answers(examples.LISTED, refused=IN_OPENAI_S_WORDS, p404=_NONE),
        openapi_extra=parameters(LIST),
    )
    @needs("ask")
    async def list_items(api: ApiDep, request: Request, conversation_id: str) -> Response:
        """All items, of its responses as well: newest first, or oldest first with `order=asc`. At most `limit` items
        (20; maximum 100), after the item `after`."""
        items, _ = await routes.items(session_of(request, api.settings.session), conversation_id)
        try:
            return _json(input_page(items, (), request.query_params.multi_items()))
        except Invalid as error:
            return in_openai_s_words(error)

    @router.get(
        f"{_ONE}/items/{{item_id}}",
        summary="Show an item of it",
        responses=answers(examples.ITEM, refused=IN_OPENAI_S_WORDS, p404=_NONE),
        openapi_extra=parameters(),
    )
    @needs("ask")
    async def show_item(api: ApiDep, request: Request, conversation_id: str, item_id: str) -> Response:
        items, _ = await routes.items(session_of(request, api.settings.session), conversation_id)
        return _json(_one(items, item_id))

    @router.delete(
        f"{_ONE}/items/{{item_id}}",
        summary="Remove an item from it",
        responses=answers(examples.SHOWN, refused=IN_OPENAI_S_WORDS, p404=_NONE, p409=_BUSY),
        openapi_extra=parameters(),
    )
    @needs("ask")
    async def remove_item(api: ApiDep, request: Request, conversation_id: str, item_id: str) -> Response:
        """Only an item that was added since its last response: what the model was told stays in its history."""
        session = session_of(request, api.settings.session)
        with conversations.alone(session, conversation_id):
            conversation, thread = await routes.find(session, conversation_id)
            items, new = await all_items(conversations.store, thread)
            if _one(items, item_id)["id"] not in new:
                words = f"Item with id '{item_id}' cannot be removed: a response of the conversation goes on from it"
                raise Problem(400, words, field="item_id", code="item_in_use")
            await conversations.append(conversation, [], removed=[item_id])
        return await routes.show(session, conversation_id)


class _Routes:
    def __init__(self, conversations: Conversations, download: Download | None) -> None:
        self.conversations = conversations
        self._store = conversations.store
        self._download = download

    async def whole(self, session: str, body: Any, max_body: int) -> Any:
        """The body with the items and the content that its items only refer to. Raises Invalid, Problem."""
        given = await resolved(self._store, session, body, max_body, _ITEMS)
        return await with_files(given, self._download, max_body, _ITEMS)

    def unseal(self, session: str) -> Unseal:
        return Sealing(self._store, session).unseal

    async def find(self, session: str, name: str) -> tuple[Conversation, list[Record]]:
        """The conversation, and its thread. Raises Problem (404), StoreUnavailable."""
        if (head := await self._store.conversation(session, name)) is None:
            raise unknown_conversation(name)
        return await self.conversations.find(session, name, None), await self._store.history(session, head)

    async def items(self, session: str, name: str) -> tuple[list[Document], set[str]]:
        _, thread = await self.find(session, name)
        return await all_items(self._store, thread)

    async def show(self, session: str, name: str) -> Response:
        conversation, thread = await self.find(session, name)
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
