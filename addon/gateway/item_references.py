"""Items that a client refers to by their ids, instead of sending them again.

The id of an item that the proxy makes holds the id of its response, so no index is needed to find it.
"""

import asyncio
import re
from typing import Any, NamedTuple

from addon.core.dialects.responses import is_reference, whole_items
from addon.core.framing.documents import Document, encode
from addon.web.problems import Problem
from store.base import Store, UnknownResponse

INPUT = "input"
"""The member of a stored Response object that contains the request's input."""
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{48})[0-9a-f]+")


class ItemIds:
    """Makes the ids of a response's items, from a prefix such as `msg`."""

    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix("resp_")
        self._count = 0

    def __call__(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._stem}{self._count:04x}"


async def resolved(store: Store, session: str, body: Any, max_body: int) -> Any:
    """The body of a request with the items in place of the references to them; they count by `max_body` as if they were
    in it. Raises Problem (404, 413)."""
    items = body.get(INPUT) if isinstance(body, dict) else None
    if not isinstance(items, list):
        return body
    places = [at for at, item in enumerate(items) if isinstance(item, dict) and is_reference(item)]
    if not places:
        return body
    found, given, size = _Found(store, session), list(items), 0
    for at in places:
        item_id = items[at].get("id")
        item = await found.item(item_id) if isinstance(item_id, str) else None
        if item is None:
            words = f"Item with id '{item_id}' not found: no stored response of this session has it"
            raise Problem(404, words, field=f"{INPUT}[{at}].id")
        given[at], size = item.document, size + item.size
        if size > max_body:
            words = f"the items that the input refers to are larger than graft_max_body, {max_body} bytes"
            raise Problem(413, words, field=f"{INPUT}[{at}].id")
    return {**body, INPUT: given}


class _Item(NamedTuple):
    """`size`: in bytes of JSON."""

    document: Document
    size: int


class _Found:
    """The items of all responses that were looked at, by their ids."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session
        self._responses: set[str] = set()
        self._documents: dict[str, Document] = {}
        self._items: dict[str, _Item] = {}

    async def item(self, item_id: str) -> _Item | None:
        if (known := self._items.get(item_id)) is not None:
            return known
        if (match := _ITEM_ID.fullmatch(item_id)) is not None and match[1] not in self._responses:
            self._responses.add(match[1])
            await self._read(f"resp_{match[1]}")
        if (document := self._documents.get(item_id)) is None:
            return None
        item = self._items[item_id] = _Item(document, len(encode(document)))
        return item

    async def _read(self, response_id: str) -> None:
        await asyncio.sleep(0)  # the store may not wait for anything, and there may be many
        try:
            response = await self._store.response(self._session, response_id)
        except UnknownResponse:
            return
        document = response.document or {}
        for item in (*whole_items(document.get(INPUT, []), response.contents), *document.get("output", [])):
            self._documents.setdefault(item["id"], item)
