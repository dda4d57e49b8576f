"""Answers made by the proxy, in the form that the request asked for: `json`, `sse` or `array`."""

from collections.abc import Sequence

from addon.core.framing import streams
from addon.core.framing.documents import Document, encode

PROXY_ENDING = "the proxy is ending"
"""The message for each client whose request is refused or cut off because the proxy ends."""


RETRY_AFTER = "1"
"""Seconds before a retry after a 503, for the header `Retry-After`."""


def is_answer(status: int) -> bool:
    """Whether a client takes a response with this HTTP status for the model's answer."""
    return 200 <= status < 300 and status not in (204, 205)


def content_type(form: str) -> str:
    return "text/event-stream" if form == "sse" else "application/json; charset=UTF-8"


def framed(document: Document, form: str, path: Sequence[str] = ()) -> bytes:
    """A whole answer with one response document, nested under the keys of `path`."""
    for key in reversed(path):
        document = {key: document}
    body = encode(document)
    if form == "sse":
        return streams.sse_event(body)
    return b"[" + body + b"]" if form == "array" else body


def text_answer(text: str, model: str, response_id: str) -> Document:
    """A complete GenerateContentResponse with one text, and zero tokens."""
    return {
        "candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 0, "totalTokenCount": 0},
        "modelVersion": model,
        "responseId": response_id,
    }


def error(code: int, status: str, message: str) -> Document:
    return {"error": {"code": code, "message": message, "status": status}}
