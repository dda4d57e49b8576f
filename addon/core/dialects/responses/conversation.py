"""Reads the bodies of the Conversations API. Pure."""

from collections.abc import Sequence

from addon.core.dialects.responses.errors import array, bad, body_object, required
from addon.core.dialects.responses.items import Unseal, nothing_sealed, read_items
from addon.core.dialects.responses.options import metadata
from addon.core.framing.documents import Document

_MOST_ADDED = 20
"""The most items added by one request."""


def read_conversation(body: object, unseal: Unseal = nothing_sealed) -> tuple[list[Document], dict[str, str]]:
    """The items and the metadata of a new conversation. Raises Invalid."""
    given = _given(body, ("items", "metadata"))
    return _items(given.get("items", []), unseal), metadata(given.get("metadata", {}))


def read_added_items(body: object, unseal: Unseal = nothing_sealed) -> list[Document]:
    """Raises Invalid."""
    given = _given(body, ("items",))
    if not (items := _items(required(given, "items", ""), unseal)):
        raise bad("items", "is empty; it must hold at least one item")
    return items


def read_metadata(body: object) -> dict[str, str]:
    """Raises Invalid."""
    return metadata(required(_given(body, ("metadata",)), "metadata", ""))


def conversation_document(name: str, created_at: float, pairs: Document) -> Document:
    return {"id": name, "object": "conversation", "created_at": int(created_at), "metadata": pairs}


def _given(body: object, known: Sequence[str]) -> Document:
    document = body_object(body)
    for key in document:
        if key not in known:
            raise bad(key, f"is not known; known fields are {', '.join(known)}", "unknown_parameter")
    return {key: value for key, value in document.items() if value is not None}


def _items(value: object, unseal: Unseal) -> list[Document]:
    items = array(value, "items")
    if len(items) > _MOST_ADDED:
        raise bad("items", f"holds {len(items)} items; at most {_MOST_ADDED} can be added at once")
    read_items(items, "items", unseal)
    return items
