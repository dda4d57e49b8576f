"""Compaction: Gemini summarizes a conversation, and the client continues with the summary instead of the messages.

The request for the summary is an ordinary Responses API request that is not stored. It asks for JSON, so that tools are
excluded. Pure.
"""

from collections.abc import Callable

from addon.core.dialects.responses.answer import usage_of
from addon.core.dialects.responses.errors import bad, body_object, required, string
from addon.core.dialects.responses.items import Unseal
from addon.core.dialects.responses.request import ResponsesRequest, read_request
from addon.core.framing.documents import Document, Malformed, decode

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
