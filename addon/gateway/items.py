"""The items of responses and conversations: their ids, references to them, and changes by clients.

The id of an item that the proxy makes contains the id of its response, so no index is needed to find it.

A change by a client is a separate record in the conversation's thread, without Contents: the added items, and the ids
of the removed ones. With the next request of the conversation they become Contents, before its input."""

import asyncio
import re
from collections.abc import Sequence
from itertools import batched
from typing import Any

from addon.core.dialects.responses.conversations import whole_items
from addon.core.dialects.responses.errors import fields
from addon.core.dialects.responses.items import is_reference
from addon.core.framing.documents import Document, encode
from addon.web.problems import Problem
from store.base import Store
from store.models import Response

INPUT = "input"
"""The member of a stored Response object that contains the request's input."""
_REFERENCE = dict.fromkeys(("type", "id")).keys()
"""The members of a reference."""
_READ_AT_ONCE = 50
"""The number of responses that are read together."""
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{48})[0-9a-f]+")


class ItemIds:
    """Makes the ids of a response's items, from a prefix such as `msg`."""

    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix("resp_")
        self._count = 0

    def __call__(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._stem}{self._count:04x}"


def repeated_id(response_id: str, place: int) -> str:
    """The id of an input item in its conversation, if the client's id for it belongs to an earlier item."""
    return f"item_{response_id.removeprefix('resp_')}{place:04x}"


def without_input(document: Document) -> Document:
    """A stored Response object as its client has it."""
    return {name: value for name, value in document.items() if name != INPUT}


async def resolved(store: Store, session: str, body: Any, max_body: int, member: str = INPUT) -> Any:
    """The body of a request with references replaced by their items, which then count towards `max_body`. `member`: the
    member with the items. Raises Invalid, Problem (404, 413)."""
    items = body.get(member) if isinstance(body, dict) else None
    if not isinstance(items, list):
        return body
    places = [at for at, item in enumerate(items) if isinstance(item, dict) and is_reference(item)]
    if not places:
        return body
    for at in places:
        if not items[at].keys() <= _REFERENCE:  # there may be thousands
            fields(items[at], _REFERENCE, f"{member}[{at}]")
    found, given, size = await _found(store, session, [items[at].get("id") for at in places]), list(items), 0
    for at in places:
        item_id = items[at].get("id")
        item = found.get(item_id) if isinstance(item_id, str) else None
        if item is None:
            words = f"Item with id '{item_id}' not found: no stored response of this session has it"
            raise Problem(404, words, field=f"{member}[{at}].id")
        given[at], size = item, size + len(encode(item))
        if size > max_body:
            words = f"the items that the input refers to are larger than graft_max_body, {max_body} bytes"
            raise Problem(413, words, field=f"{member}[{at}].id")
    return {**body, member: given}


async def _found(store: Store, session: str, item_ids: Sequence[object]) -> dict[str, Document]:
    """All items, by id, of the responses to which these items belong."""
    matches = (_ITEM_ID.fullmatch(item_id) for item_id in item_ids if isinstance(item_id, str))
    response_ids = dict.fromkeys(f"resp_{match[1]}" for match in matches if match)
    found: dict[str, Document] = {}
    for some in batched(response_ids, _READ_AT_ONCE, strict=False):
        responses = await store.responses(session, some)
        for response_id in some:
            if (response := responses.get(response_id)) is None:
                continue
            document = response.document or {}
            given = whole_items(document.get(INPUT, []), response.contents)
            for item in (*given, *document.get("output", [])):
                found.setdefault(item["id"], item)
            found.update((repeated_id(response_id, place), item) for place, item in enumerate(given))
        if len(responses) < len(some):
            return found  # the request is refused
        await asyncio.sleep(0)  # the store may never suspend, and the references may be many
    return found


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
