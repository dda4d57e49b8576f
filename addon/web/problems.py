"""Errors of the control API, as `application/problem+json` (RFC 9457), or in the form of a path's callers.

One function turns every exception of a handler into an answer. Answers contain only the caller's data: no traceback, no
path and no message of the store.
"""

import http
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pydantic_core
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from addon.core.framing.replies import RETRY_AFTER
from addon.core.tools.tool_forms import BadTool
from store.base import (
    AlreadyAnswered,
    BadCursor,
    Decided,
    LeaseLost,
    NotDurable,
    OutcomeUnknown,
    ProxyGone,
    StoreUnavailable,
    UnknownCall,
)
from store.models import SESSION_FORM, SESSION_PATTERN, Call, Status

_log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class ProblemBody(BaseModel):
    """The body of every refusal."""

    type: str = "about:blank"
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["delivery: 'later' does not fit: must be 'auto', 'placeholder', 'loop' …"])
    field: str | None = Field(None, description="The wrong field, parameter or header, if any.")
    tool: str | None = Field(None, description="The name of the wrong tool, if any.")


class Problem(HTTPException):
    """A refusal; a 503 has a Retry-After. `extra`: further members, such as `field` and `tool`, without those that are
    None."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any) -> None:
        super().__init__(status, detail, headers or ({"Retry-After": RETRY_AFTER} if status == 503 else None))
        self.status = status
        self.extra = extra

    def __str__(self) -> str:
        return self.detail

    def response(self) -> Response:
        title = http.HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        body |= {name: value for name, value in self.extra.items() if value is not None}
        return Response(pydantic_core.to_json(body), self.status, self.headers, MEDIA_TYPE)


type Dialect = Callable[[Problem], Response]
"""Writes a refusal in the form that a path's callers understand."""


def refusal(problem: Problem, scope: Scope) -> Response:
    """The answer to a refused request, in its caller's dialect."""
    dialect: Dialect = scope.get("dialect", Problem.response)
    return dialect(problem)


def refused(error: Exception, scope: Scope) -> Response:
    """The answer for a handler's exception. A failure is counted."""
    problem = problem_of(error)
    if problem.status >= 500:
        scope["api"].metrics.error("store" if problem.status == 503 else "control")
    return refusal(problem, scope)


def parse(body: bytes) -> Any:
    """The JSON of a body: strict (no NaN, no lone surrogates). Raises Problem (400).

    A number too large for a double becomes infinity. Finding these here would be slow, so a body is checked where it is
    stored (`storable_json`).
    """
    with storable_json():
        return pydantic_core.from_json(body, allow_inf_nan=False)


@contextmanager
def storable_json() -> Iterator[None]:
    """Turns a ValueError into Problem (400), for code that checks whether JSON can represent a body."""
    try:
        yield
    except ValueError as error:
        raise Problem(400, f"the body is not JSON that can be stored: {error}") from None


def problem_of(error: Exception) -> Problem:
    """The refusal for a handler's exception. An unexpected exception is a 500, and its traceback is logged."""
    match error:
        case Problem():
            return error
        case HTTPException():
            return Problem(error.status_code, error.detail, headers=error.headers)
        case BadTool():
            return Problem(422, str(error), field=error.field or None, tool=error.tool or None)
        case UnknownCall():
            return Problem(404, "there is no such call")
        case AlreadyAnswered():
            return Problem(
                409, f"the call is already {error.call.status}, with a different body: the first answer is kept"
            )
        case LeaseLost():
            return Problem(409, f"the call is {_status_text(error.call)}; this worker has no lease of it")
        case Decided() if error.call.status is Status.EXPIRED:
            return Problem(409, "what waited for this call is gone, and the call is expired")
        case Decided():
            return Problem(409, f"the call is {_status_text(error.call)}; it is not waiting for this decision")
        case ProxyGone():
            return Problem(409, "what waited for this call is gone, and the call is expired")
        case BadCursor():
            return Problem(422, "cursor: must be the next_cursor of the page before", field="cursor")
        case StoreUnavailable():
            return _store_problem(error)
    _log.error("the control API failed", exc_info=error)
    return Problem(500, "the control API failed; see the proxy's log")


def _store_problem(error: StoreUnavailable) -> Problem:
    _log.warning("the store failed: %s", error)
    match error:
        case NotDurable():
            words = "the change was made, but the disk or all replicas have failed: it may be lost in a power failure"
        case OutcomeUnknown():
            words = "the store has not answered, and the change may have been made: read it, or send the request again"
        case _:
            words = "the store cannot be used now; nothing was changed"
    return Problem(503, words)


def _status_text(call: Call) -> str:
    return call.status if call.approval is None else f"{call.status} (approval: {call.approval})"


def invalid(errors: Sequence[Any], *, part: str, known: Collection[str]) -> Problem:
    """A 422 for pydantic's first error: the field, its value and what fits. `part`: the part of the request with which
    the errors' places begin. `known`: the names to list if one is unknown."""
    first = errors[0]
    field = ".".join(str(step) for step in first["loc"][1:])
    if first["type"] == "extra_forbidden":
        return Problem(422, f"{field}: unknown; known names: {', '.join(known)}", field=field)
    if first["type"] == "missing":
        if not field:
            return Problem(400, f"the {part} is missing")
        return Problem(422, f"{field}: missing", field=field)
    value = repr(first["input"])
    excerpt = value if len(value) <= 80 else value[:79] + "…"
    prefix = f"{field}: " if field else ""
    return Problem(422, f"{prefix}{excerpt} does not fit: {_what_fits(first)}", field=field or None)


def _what_fits(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    if error["type"] in ("literal_error", "enum"):
        return f"must be {context['expected']}"
    if SESSION_PATTERN in str(context.get("pattern", "")):
        return f"must be {SESSION_FORM}"
    message: str = error["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "must be")
