"""What ends a turn without an answer, and how each door words its refusals."""

from typing import Any, Self, TypeGuard

from starlette.responses import Response

from addon.core.dialects.responses import Invalid, error_document, error_status
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
_LONGEST = 1000  # characters of an error that is no document of Google's


class TurnFailed(Exception):
    """The upstream, or the way to it, has refused a turn or broken it off. `document` says so in Google's shape."""

    def __init__(self, code: int, message: str, document: Document | None = None) -> None:
        super().__init__(message)
        self.code = code if _is_error(code) else 502  # such as a redirect, which leads a caller of the door nowhere
        self.message = message
        self.document = document or replies.error(self.code, status_of(self.code), message)

    @classmethod
    def from_body(cls, code: int, body: bytes) -> Self:
        """What the body of an answer with this status says, whatever it is."""
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
        """`document` is an error in Google's shape. `code`: the status that it came with; without one, as in a stream,
        its own holds."""
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
    """The status and the document that tell of an error as Google does; it knows no 422."""
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
    """The status and the document that tell of an error as OpenAI does; it has no 422 for its requests."""
    if isinstance(error, TurnFailed):
        status = error_status(error.code, error.document)
        return status, error_document(status, error.document)
    if isinstance(error, Invalid):
        return 400, error_document(400, error)
    problem = problem_of(error)
    status = 400 if problem.status == 422 else problem.status
    code, field = problem.extra.get("code"), problem.extra.get("field")
    return status, error_document(status, problem.detail, code=code, param=field)


def in_openai_s_words(error: Exception) -> Response:
    """A refusal as OpenAI words its own."""
    status, document = openai_error(error)
    headers = error.headers if isinstance(error, Problem) else None
    return Response(encode(document), status, headers, "application/json")


def in_google_s_words(error: Exception) -> Response:
    """A refusal as Google words its own."""
    code, document = google_error(error)
    headers = error.headers if isinstance(error, Problem) else None
    return Response(encode(document), code, headers, "application/json; charset=UTF-8")
