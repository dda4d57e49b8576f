"""The front doors' part of the OpenAPI document: headers, bodies, and errors in the forms of OpenAI and Google."""

from collections.abc import Mapping, Sequence
from typing import Any

from addon.core.framing.documents import Document
from addon.gateway.callers import KEY_HEADER, SESSION_HEADER
from store.models import SESSION_PATTERN

_TEXT: Document = {"type": "string"}
_MAYBE_TEXT: Document = {"type": ["string", "null"]}
_OBJECT: Document = {"type": "object"}
_OBJECTS: Document = {"type": "array", "items": _OBJECT}
_NO_QUERY: Mapping[str, Document] = {}
_NAME: Document = {"anyOf": [_TEXT, {"type": "object", "properties": {"id": _TEXT}, "required": ["id"]}]}

SESSION: Document = {
    "name": SESSION_HEADER,
    "in": "header",
    "description": "The session; the proxy's own (`graft_session`) if absent.",
    "schema": {"type": "string", "pattern": SESSION_PATTERN},
}
KEY: Document = {
    "name": KEY_HEADER,
    "in": "header",
    "description": "The Gemini API key; if absent, the key from the proxy's environment.",
    "schema": _TEXT,
}


def _body(properties: Mapping[str, Document], required: Sequence[str] = ("model", "input")) -> Document:
    """A body with the most used fields; other fields are those of the API that the front door implements."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}


GEMINI_BODY = _body(
    {
        "model": _TEXT,
        "input": {"anyOf": [_TEXT, _OBJECT, _OBJECTS], "description": "A text, Parts or Contents."},
        "tools": _OBJECTS,
        "toolConfig": _OBJECT,
        "systemInstruction": {"anyOf": [_TEXT, _OBJECT]},
        "generationConfig": _OBJECT,
        "safetySettings": _OBJECTS,
        "conversation": _NAME,
        "previousResponseId": _TEXT,
        "stream": {"type": "boolean"},
    }
)
CHAT_BODY = _body(
    {"model": _TEXT, "messages": _OBJECTS, "tools": _OBJECTS, "stream": {"type": "boolean"}},
    required=["model", "messages"],
)
EMBEDDINGS_BODY = _body({"model": _TEXT, "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}})
COMPACTION_BODY = _body(
    {
        "model": _TEXT,
        "input": {"anyOf": [_TEXT, _OBJECTS]},
        "instructions": _TEXT,
        "previous_response_id": _TEXT,
        "prompt_cache_key": _TEXT,
    },
    required=["model"],
)
_METADATA: Document = {"type": "object", "additionalProperties": _TEXT, "maxProperties": 16}
_ADDED: Document = {**_OBJECTS, "maxItems": 20}
CONVERSATION_BODY = _body({"items": _ADDED, "metadata": _METADATA}, required=[])
METADATA_BODY = _body({"metadata": _METADATA}, required=["metadata"])
ITEMS_BODY = _body({"items": _ADDED}, required=["items"])
RESPONSES_BODY = _body(
    {
        "model": _TEXT,
        "input": {"anyOf": [_TEXT, _OBJECTS]},
        "instructions": _TEXT,
        "tools": _OBJECTS,
        "tool_choice": {"anyOf": [_TEXT, _OBJECT]},
        "conversation": _NAME,
        "previous_response_id": _TEXT,
        "store": {"type": "boolean"},
        "stream": {"type": "boolean"},
    }
)


def parameters(query: Mapping[str, Document] = _NO_QUERY, *, key: bool = False) -> dict[str, Any]:
    """For `openapi_extra`: the headers of a front door, and query parameters by their schemas."""
    named = [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    return {"parameters": [SESSION, *([KEY] if key else []), *named]}


def _refused(error: Document, example: Document) -> dict[str, Any]:
    """A description of a refusal whose body has only the member `error`."""
    schema = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    return {
        "description": "A refusal by the proxy, or by Gemini with its original status",
        "content": {"application/json": {"schema": schema, "example": {"error": example}}},
    }


IN_OPENAI_S_WORDS = _refused(
    {
        "type": "object",
        "properties": {"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT},
        "required": ["message", "type", "param", "code"],
    },
    {"message": "model is missing", "type": "invalid_request_error", "param": "model", "code": None},
)
IN_GOOGLE_S_WORDS = _refused(
    {
        "type": "object",
        "properties": {"code": {"type": "integer"}, "message": _TEXT, "status": _TEXT, "details": _OBJECTS},
        "required": ["code", "message", "status"],
    },
    {"code": 400, "message": "input: missing", "status": "INVALID_ARGUMENT"},
)
UPSTREAM = {
    "p409": "Another request of the conversation is running, or has appended a response",
    "p429": "Gemini refuses the request for now",
    "p502": "Gemini cannot be reached, or its answer is not valid",
}
