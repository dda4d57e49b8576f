"""The items of a conversation: those of its responses, and those that clients added to it.

A change by a client is a separate record in the conversation's thread, without Contents: the added items, and the ids
of the removed ones. With the next request of the conversation they become Contents, before its input.
"""

import asyncio
from collections.abc import Sequence

from addon.core.dialects.responses import whole_items
from addon.core.framing.documents import Document
from addon.gateway.item_references import INPUT, repeated_id
from store.base import Store
from store.models import Response

ADDED = "conversation.items"
"""The `object` of such a record's document."""


async def all_items(store: Store, responses: Sequence[Response]) -> tuple[list[Document], set[str]]:
    """The items of a thread, oldest first, and the ids of those that the model has not received yet. Raises
    UnknownResponse, StoreUnavailable."""
    read = await _with_documents(store, responses)
    behind = len(read) - _behind(responses)
    items, new, removed, ids = list[Document](), set[str](), set[str](), set[str]()
    for at, one in enumerate(read):
        document = one.document or {}
        removed.update(document.get("removed", ()))
        found = [
            {**item, "id": repeated_id(one.response_id, place)} if item["id"] in ids else item
            for place, item in enumerate(whole_items(document.get(INPUT, []), one.contents))
        ]
        items += found
        ids.update(item["id"] for item in found)
        if at >= behind:
            new.update(item["id"] for item in found)
        items += document.get("output", [])
        ids.update(item["id"] for item in document.get("output", []))
    return [item for item in items if item["id"] not in removed], new - removed


async def items_behind(store: Store, responses: Sequence[Response]) -> list[Document]:
    """The items that were added after the last response of a thread. Raises UnknownResponse, StoreUnavailable."""
    if not (count := _behind(responses)):
        return []
    items, _ = await all_items(store, responses[len(responses) - count :])
    return items


def _behind(responses: Sequence[Response]) -> int:
    """The number of records at the end that only change items."""
    return next((at for at, one in enumerate(reversed(responses)) if one.contents), len(responses))


async def _with_documents(store: Store, responses: Sequence[Response]) -> list[Response]:
    """A thread with all documents: it is read with the last one only."""
    read = (store.response(one.session, one.response_id) for one in responses[:-1])
    return [*await asyncio.gather(*read), *responses[-1:]]
