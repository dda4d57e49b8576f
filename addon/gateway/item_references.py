"""Items that a client refers to by their ids, instead of sending them again.

The id of an item that the proxy makes holds the id of its response, so no index is needed to find it.
"""

import re
from collections.abc import Iterable
from typing import Any

from addon.core.dialects.responses import is_reference, whole_items
from addon.core.framing.documents import Document
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


async def resolved(store: Store, session: str, body: Any) -> Any:
    """The body of a request with the items in place of the references to them. Raises Problem (404)."""
    items = body.get(INPUT) if isinstance(body, dict) else None
    if not isinstance(items, list):
        return body
    places = [at for at, item in enumerate(items) if isinstance(item, dict) and is_reference(item)]
    if not places:
        return body
    found = await _items(store, session, (str(items[at].get("id")) for at in places))
    given = list(items)
    for at in places:
        item_id = items[at].get("id")
        if not isinstance(item_id, str) or item_id not in found:
            words = f"Item with id '{item_id}' not found: no stored response of this session has it"
            raise Problem(404, words, field=f"{INPUT}[{at}].id")
        given[at] = found[item_id]
    return {**body, INPUT: given}


async def _items(store: Store, session: str, item_ids: Iterable[str]) -> dict[str, Document]:
    """The items of all responses that made one of these, by their ids."""
    found: dict[str, Document] = {}
    for response_id in dict.fromkeys(f"resp_{match[1]}" for one in item_ids if (match := _ITEM_ID.fullmatch(one))):
        try:
            response = await store.response(session, response_id)
        except UnknownResponse:
            continue
        document = response.document or {}
        for item in (*whole_items(document.get(INPUT, []), response.contents), *document.get("output", [])):
            found.setdefault(item["id"], item)
    return found
