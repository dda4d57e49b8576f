"""Stored conversations: their input items, the bodies of the Conversations API, and compaction.

Items are listed as given, with the members that OpenAI adds to every item: an id, a status, content in parts. The data
of images and files is stored once: if the history holds it, an item only refers to it. For a compaction, Gemini
summarizes a conversation, and the client continues with the summary instead of the messages. Pure.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from addon.core.dialects.responses.answer import usage_of
from addon.core.dialects.responses.errors import array, bad, body_object, one_of, required, string
from addon.core.dialects.responses.items import PARSED_ARGUMENTS, Unseal, nothing_sealed, read_items
from addon.core.dialects.responses.options import INCLUDABLE, metadata
from addon.core.dialects.responses.request import ResponsesRequest, read_request
from addon.core.framing.documents import Document, Malformed, decode, get, parts_of

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
    "web_search_call": "ws",
}
_DATA = ("image_url", "file_data")
_LIMIT, _MOST_LISTED = 20, 100
_DIGITS = 10  # Python refuses to parse numbers with very many digits


def stored_items(
    given: str | Sequence[Document],
    contents: Sequence[Document],
    new_id: Callable[[str], str],
    taken: Collection[str] = (),
) -> list[Document]:
    """The items to store for a valid input. `contents`: the Contents that the request adds to the history, stored
    beside the items. `new_id`: makes an id such as `msg_…` from its prefix. `taken`: ids of other items."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    places = {data: at for at, data in reversed(list(enumerate(_blobs(contents))))}
    ids = set(taken)
    items_to_store = []
    for one in items:
        item = _completed({key: value for key, value in one.items() if value is not None})
        item_id = item.get("id")
        if not isinstance(item_id, str) or not item_id or item_id in ids:
            item_id = new_id(_PREFIXES[item["type"]])
        ids.add(item_id)
        items_to_store.append(_with_parts({**item, "id": item_id}, lambda part: _slim(part, places)))
    return items_to_store


def input_page(stored: Sequence[Document], contents: Sequence[Document], query: Sequence[tuple[str, str]]) -> Document:
    """A page of the list of items. `query`: `limit` (1 to 100, default 20), `order` (default `desc`), `after` (an
    item's id), `include`. Raises Invalid."""
    limit, order, after = _LIMIT, "desc", None
    for name, value in query:
        if name == "limit":
            limit = _limit(value)
        elif name == "order":
            order = one_of(value, ("asc", "desc"), "order")
        elif name == "after":
            after = value
        elif name in ("include", "include[]"):
            one_of(value, INCLUDABLE, "include", "nothing else can be included")
        else:
            raise bad(name, "is not known; use after, include, limit or order", "unknown_parameter")
    items = list(stored) if order == "asc" else list(reversed(stored))
    if after is not None:
        places = [at for at, item in enumerate(items) if item["id"] == after]
        if not places:
            raise bad("after", f"is {after}, which is not the id of an item in this list")
        items = items[places[0] + 1 :]
    data = whole_items(items[:limit], contents)
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(items) > limit,
    }


def whole_items(stored: Sequence[Document], contents: Sequence[Document]) -> list[Document]:
    """The items as they were given. `contents`: the Contents that the request added to the history."""
    if not any(map(_is_slim, stored)):
        return list(stored)
    blobs = list(_blobs(contents))
    return [_with_parts(item, lambda part: _whole(part, blobs)) for item in stored]


def _limit(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < _DIGITS and 1 <= int(value) <= _MOST_LISTED):
        raise bad("limit", f"is {value}; it must be a whole number from 1 to {_MOST_LISTED}")
    return int(value)


def _completed(item: Document) -> Document:
    kind = item.get("type", "message")
    if kind == "reasoning":
        return {"summary": [], **item}
    if kind in ("compaction", "web_search_call"):
        return item
    item = {"type": kind, "status": "completed", **item}
    item.pop(PARSED_ARGUMENTS, None)
    if kind == "function_call_output" and isinstance(item["output"], list):
        item["output"] = [_input_part(part) for part in item["output"]]
    elif kind == "message":
        convert = _output_part if item["role"] == "assistant" else _input_part
        content = item["content"]
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        item["content"] = [convert(part) for part in content]
    return item


def _input_part(part: Document) -> Document:
    if "text" in part:
        return {"type": "input_text", "text": part["text"]}
    part = {key: value for key, value in part.items() if value is not None}
    return {"detail": "auto", **part} if part["type"] == "input_image" else part


def _output_part(part: Document) -> Document:
    if "text" not in part:
        return part
    return {"annotations": part.get("annotations") or [], "type": "output_text", "text": part["text"]}


def _with_parts(item: Document, changed: Callable[[Document], Document]) -> Document:
    """The item with a function applied to each of its content or output parts."""
    return {**item, **{name: [changed(part) for part in parts] for name, parts in _parts_in(item).items()}}


def _parts_in(item: Document) -> dict[str, list[Document]]:
    """The lists of parts that may hold data. Thoughts hold none, and may have any other form."""
    names = () if item.get("type") == "reasoning" else ("content", "output")
    return {name: item[name] for name in names if isinstance(item.get(name), list)}


def _slim(part: Document, places: dict[str, int]) -> Document:
    for name in _DATA:
        head, _, data = str(part.get(name, "")).partition(",")
        if data in places:
            return {**part, name: {"head": head, "blob": places[data]}}
    return part


def _is_slim(item: Document) -> bool:
    return any(
        isinstance(part.get(name), dict) for parts in _parts_in(item).values() for part in parts for name in _DATA
    )


def _whole(part: Document, blobs: Sequence[str]) -> Document:
    for name in _DATA:
        if isinstance(reference := part.get(name), dict):
            return {**part, name: f"{reference['head']},{blobs[reference['blob']]}"}
    return part


def _blobs(contents: Sequence[Document]) -> Iterator[str]:
    """The data of all inlineData parts in these Contents, in order, including those in functionResponses."""
    for content in contents:
        for part in parts_of(content):
            response = get(part, "functionResponse")
            for one in (part, *(parts_of(response) if isinstance(response, dict) else ())):
                if isinstance(blob := get(one, "inlineData"), dict):
                    yield str(blob.get("data"))


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


_COMPACTION = ("model", "input", "previous_response_id", "instructions", "prompt_cache_key")
_ASK = (
    "Summarize this conversation, for yourself: you will go on with the summary and without the messages. Keep every "
    "fact, name, number, decision, open question and result that may still matter, what the user asked for and how, "
    "and what remains to be done. Do not answer the user, and do not begin anything new."
)
_FORMAT = {
    "type": "json_schema",
    "name": "summary",
    "schema": {"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]},
}


def read_compaction(body: object, unseal: Unseal) -> ResponsesRequest:
    """The request for the summary. `body`: of `/v1/responses/compact`, as decoded JSON. Raises Invalid."""
    given = {key: value for key, value in body_object(body).items() if value is not None}
    for key in given:
        if key not in _COMPACTION:
            message = f"is not a field of a compaction; known fields are {', '.join(_COMPACTION)}"
            raise bad(key, message, "unknown_parameter")
    if "previous_response_id" not in given and required(given, "input", "") in ([], ""):
        raise bad("input", "is empty: there is nothing to summarize")
    items = given.pop("input", [])
    items = [{"role": "user", "content": items}] if isinstance(items, str) and items else items
    if isinstance(items, list):
        items = [*items, {"role": "user", "content": _ASK}]
    string(given.pop("prompt_cache_key", ""), "prompt_cache_key")
    return read_request({**given, "input": items, "tools": [], "store": False, "text": {"format": _FORMAT}}, unseal)


def compacted(response: Document, seal: Callable[[str], str], new_id: Callable[[str], str]) -> Document | None:
    """The answer of `/v1/responses/compact`, from the response with the summary; None if it contains no summary."""
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    try:
        answer = decode("".join(texts).encode())
    except Malformed:
        return None
    summary = answer.get("summary") if isinstance(answer, dict) else None
    if response["status"] != "completed" or not isinstance(summary, str) or not summary.strip():
        return None
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [{"type": "compaction", "id": new_id("cmp"), "encrypted_content": seal(summary)}],
        "usage": response["usage"] or usage_of({}),
    }
