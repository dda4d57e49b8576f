"""What ends a turn without an answer, and how each door words its refusals."""

import http
from typing import Self

import pydantic_core
from starlette.responses import Response

from addon.control.problems import Problem
from addon.core import replies
from addon.core.documents import Document, Malformed, decode

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_LONGEST = 1000  # characters of an error that is no document of Google's


class Failed(Exception):
    """The upstream, or the way to it, has refused a turn or broken it off. `document` says so in Google's shape."""

    def __init__(self, code: int, message: str, document: Document | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.document = document or replies.error(code, status_of(code), message)

    @classmethod
    def of(cls, code: int, body: bytes) -> Self:
        """What the body of an answer with this status says, whatever it is."""
        try:
            document = decode(body)
        except Malformed:
            document = None
        if isinstance(document, list) and document:
            document = document[0]
        if isinstance(document, dict) and isinstance(document.get("error"), dict):
            return cls.told(document, code)
        text = body.decode("utf-8", "replace").strip()[:_LONGEST]
        return cls(code, text or f"the model answered with status {code}")

    @classmethod
    def told(cls, document: Document, code: int = 500) -> Self:
        """`document` is an error in Google's shape; `code` holds where it names none."""
        error = document["error"]
        own = error.get("code")
        if isinstance(own, int) and 400 <= own < 600 and code < 400:
            code = own
        return cls(code if code >= 400 else 500, str(error.get("message") or f"status {code}"), document)


def status_of(code: int) -> str:
    """Google's name for an HTTP status."""
    return _STATUSES.get(code, "INVALID_ARGUMENT" if code < 500 else "INTERNAL")


def in_google_s(problem: Problem) -> Response:
    """A refusal of ours as Google words its own, which knows no 422."""
    code = 400 if problem.status == 422 else problem.status
    document = replies.error(code, status_of(code), problem.detail)
    if field := problem.extra.get("field"):
        violation = {"field": field, "description": problem.detail}
        kind = "type.googleapis.com/google.rpc.BadRequest"
        document["error"]["details"] = [{"@type": kind, "fieldViolations": [violation]}]
    return google_error(code, document, problem.headers)


def google_error(code: int, document: Document, headers: object = None) -> Response:
    made = Response(pydantic_core.to_json(document), code, media_type="application/json; charset=UTF-8")
    made.headers.update(headers if isinstance(headers, dict) else {})
    return made


def phrase_of(code: int) -> str:
    return http.HTTPStatus(code).phrase if code in http.HTTPStatus else "Error"
