"""Errors that end a turn without an answer, in the forms of Google and OpenAI."""

from collections.abc import Mapping
from typing import Any, Self, TypeGuard

from starlette.responses import Response

from addon.core.dialects.responses.errors import Invalid, error_document, error_status
from addon.core.framing import replies
from addon.core.framing.documents import Document, Malformed, decode, encode
from addon.web.problems import Problem, problem_of

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
_WRONG = "invalid_value"
"""OpenAI's code for a wrong field, if no other fits better."""
NO_FINISH = "toolgraft: the model's answer broke off: it has no finishReason"
_LONGEST = 1000  # characters of an error that is not in Google's form


class TurnFailed(Exception):
    """The upstream refused a turn or broke it off, or could not be reached. `document`: the error in Google's form."""

    def __init__(self, code: int, message: str, document: Document | None = None) -> None:
        super().__init__(message)
        self.code = code if _is_error(code) else 502  # for example a redirect, which the caller cannot follow
        self.message = message
        self.document = document or replies.error(self.code, status_of(self.code), message)

    @classmethod
    def from_body(cls, code: int, body: bytes) -> Self:
        """The failure for an upstream answer. The body need not be JSON."""
        try:
            document = decode(body)
        except Malformed:
            document = None
        if isinstance(document, list) and document:
            document = document[0]
        if isinstance(document, dict) and isinstance(document.get("error"), dict):
            return cls.from_document(document, code)
        text = body.decode("utf-8", "replace").strip()[:_LONGEST]
        return cls(code, text or f"the model answered with status {code}")

    @classmethod
    def from_document(cls, document: Document, code: int | None = None) -> Self:
        """`document`: an error in Google's form. `code`: the HTTP status; None, as in a stream: the document's own."""
        error = document["error"]
        if code is None or not _is_error(code):
            code = own if _is_error(own := error.get("code")) else 500
        return cls(code, str(error.get("message") or f"status {code}"), document)


def _is_error(code: Any) -> TypeGuard[int]:
    return isinstance(code, int) and 400 <= code < 600


def status_of(code: int) -> str:
    """Google's name for an HTTP status."""
    return _STATUSES.get(code, "INVALID_ARGUMENT" if code < 500 else "INTERNAL")


def google_error(error: Exception) -> tuple[int, Document]:
    """The status and document of an error in Google's form. A 422 becomes a 400, because Google has no 422."""
    if isinstance(error, TurnFailed):
        return error.code, error.document
    problem = problem_of(error)
    code = 400 if problem.status == 422 else problem.status
    document = replies.error(code, status_of(code), problem.detail)
    if field := problem.extra.get("field"):
        kind = "type.googleapis.com/google.rpc.BadRequest"
        violations = [{"field": field, "description": problem.detail}]
        document["error"]["details"] = [{"@type": kind, "fieldViolations": violations}]
    return code, document


def openai_error(error: Exception) -> tuple[int, Document]:
    """The status and document of an error in OpenAI's form. A 422 becomes a 400, because OpenAI has no 422 here."""
    if isinstance(error, TurnFailed):
        status = error_status(error.code, error.document)
        return status, error_document(status, error.document)
    if isinstance(error, Invalid):
        return 400, error_document(400, error, code=error.code or _WRONG)
    problem = problem_of(error)
    status = 400 if problem.status == 422 else problem.status
    code, field = problem.extra.get("code"), problem.extra.get("field")
    code = _WRONG if code is None and field is not None and status == 400 else code
    return status, error_document(status, problem.detail, code=code, param=field)


def in_openai_s_words(error: Exception) -> Response:
    """A refusal in OpenAI's form."""
    status, document = openai_error(error)
    return Response(encode(document), status, _headers(status, error), "application/json")


def in_google_s_words(error: Exception) -> Response:
    """A refusal in Google's form."""
    code, document = google_error(error)
    return Response(encode(document), code, _headers(code, error), "application/json; charset=UTF-8")


def _headers(status: int, error: Exception) -> Mapping[str, str] | None:
    if isinstance(error, Problem):
        return error.headers
    return {"Retry-After": replies.RETRY_AFTER} if status == 503 else None
