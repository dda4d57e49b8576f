"""Errors in OpenAI's form, and the checks that raise them. Pure.

Values are decoded JSON. `at`: the position of a value in the request, such as `input[2].content[0].image_url`. The
published clients choose their exception by the HTTP status.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

from addon.core.framing.documents import Document


class Invalid(ValueError):
    """A request is invalid. `param`: the field. `code`: one of OpenAI's, such as `invalid_type`."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class Unsupported(Invalid):
    """A member asks for something that neither Gemini nor the proxy has. `member`: its position; without it, the
    request stays the same in all other respects."""

    def __init__(self, message: str, member: str, code: str, param: str | None = None) -> None:
        super().__init__(message, param or member, code)
        self.member = member


def bad(at: str, message: str, code: str = "invalid_value") -> Invalid:
    return Invalid(f"{at} {message}", at, code)


def unsupported(at: str, message: str, code: str = "unsupported_value", *, member: str | None = None) -> Unsupported:
    """`member`: the member to leave out, if it is more than the value at fault."""
    return Unsupported(f"{at} {message}", member or at, code, at)


def quoted(value: object) -> str:
    """A bad value, short enough for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def body_object(body: object) -> Document:
    """Checks the body of a request, which has no position."""
    if not isinstance(body, dict):
        raise Invalid("the body must be a JSON object", None, "invalid_type")
    return body


def fields(value: object, known: Collection[str], at: str) -> Document:
    """An object's fields. Null is unset for any name, because clients send all known fields. Other unknown ones are
    refused."""
    if not isinstance(value, dict):
        raise bad(at, "must be an object", "invalid_type")
    given = {key: member for key, member in value.items() if member is not None}
    for key in given:
        if key not in known:
            message = f"is not known; known fields are {', '.join(known)}"
            raise unsupported(f"{at}.{key}", message, "unknown_parameter")
    return given


def required(value: Document, key: str, at: str) -> Any:
    if key not in value:
        raise bad(f"{at}.{key}" if at else key, "is missing", "missing_required_parameter")
    return value[key]


def string(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise bad(at, f"must be a string, not {quoted(value)}", "invalid_type")
    return value


def boolean(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise bad(at, f"must be true or false, not {quoted(value)}", "invalid_type")
    return value


def array(value: object, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad(at, f"must be a list, not {quoted(value)}", "invalid_type")
    return value


def one_of(value: object, fitting: Collection[str], at: str, reason: str = "") -> str:
    """One of a few strings. `reason`: why others are refused."""
    if not isinstance(value, str) or value not in fitting:
        because = f" ({reason})" if reason else ""
        raise bad(at, f"is {quoted(value)}; it must be {_either(fitting)}{because}")
    return value


def only(value: object, fitting: Collection[str], at: str, reason: str) -> str:
    """One of the values that Gemini has. `reason`: why it lacks others."""
    try:
        return one_of(value, fitting, at, reason)
    except Invalid as error:
        raise Unsupported(error.message, at, "unsupported_value") from None


def _either(fitting: Collection[str]) -> str:
    return " or ".join(f'"{one}"' for one in fitting)


def number(value: object, low: float, high: float, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(at, f"must be a number, not {quoted(value)}", "invalid_type")
    if not low <= value <= high:
        raise bad(at, f"is {value}; it must be from {low} to {high}")
    return value


def count(value: object, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(at, f"must be a whole number, not {quoted(value)}", "invalid_type")
    if not 1 <= value < 2**31:
        raise bad(at, f"is {value}; it must be 1 or more, and fit in 31 bits")
    return value


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
