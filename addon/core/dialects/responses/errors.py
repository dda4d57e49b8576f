"""Errors in OpenAI's form. The published clients choose their exception by the HTTP status. Pure."""

from collections.abc import Iterator
from typing import Any

from addon.core.dialects.responses.invalid import Invalid
from addon.core.framing.documents import Document

_REQUEST, _SERVER = "invalid_request_error", "server_error"
_KINDS: dict[int, tuple[str, str | None]] = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: (_REQUEST, "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


def error_document(
    status: int, source: Invalid | Document | list[Any] | str, *, code: str | None = None, param: str | None = None
) -> Document:
    """`{"error": {"message", "type", "param", "code"}}` for an HTTP status. `source`: the request's error, an error
    body from Gemini, or a message. `code` and `param` override those of the source."""
    kind, usual = _KINDS.get(status, (_SERVER if status >= 500 else _REQUEST, None))
    if isinstance(source, Invalid):
        code, param = code or source.code, param or source.param
    return {"error": {"message": message_of(source), "type": kind, "param": param, "code": code or usual}}


def error_status(status: int, source: Document | list[Any]) -> int:
    """The HTTP status for an error that Gemini answered with `status` and this body. A wrong key is a 400 at Gemini,
    and a 401 for OpenAI's clients. A status other than an error's becomes 502."""
    if any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(_error(source))):
        return 401
    return status if 400 <= status < 600 else 502


def message_of(source: Invalid | Document | list[Any] | str) -> str:
    if isinstance(source, str):
        return source
    if isinstance(source, Invalid):
        return source.message
    error = _error(source)
    message = error.get("message")
    return message if isinstance(message, str) and message else f"Gemini returned an error: {error or source}"


def _error(source: Document | list[Any]) -> Document:
    """The error itself, which some surfaces wrap in a list."""
    body = source[0] if isinstance(source, list) and source else source
    error = body.get("error", body) if isinstance(body, dict) else {}
    return error if isinstance(error, dict) else {"message": str(error)}


def _details(error: Document) -> Iterator[Document]:
    details = error.get("details")
    return (detail for detail in (details if isinstance(details, list) else ()) if isinstance(detail, dict))
