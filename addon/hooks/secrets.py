"""What must not be written down: API keys, tokens and cookies in headers and URLs."""

import re

from mitmproxy import http

SECRET_HEADERS = (
    "authorization",
    "proxy-authorization",
    "x-goog-api-key",
    "x-goog-iam-authorization-token",
    "x-goog-user-project",
    "api-key",  # of gateways that speak for Gemini
    "x-api-key",
    "cookie",
    "set-cookie",
)
REMOVED = "REMOVED"

_PARAMETERS = ("key", "access_token", "api_key", "token")
_IN_QUERY = re.compile(rf"([?&](?:{'|'.join(_PARAMETERS)})=)[^&\s\x1b]+", re.IGNORECASE)

_COLOUR = r"(?:\x1b\[[\d;]*m)*"
_LINE = re.compile(
    rf"^((?: |\x1b\[[\d;]*m)*(?:{'|'.join(SECRET_HEADERS + _PARAMETERS)}){_COLOUR}:{_COLOUR})"
    rf"(?: .*|(?:\n *{_COLOUR}- .*)+)",
    re.IGNORECASE | re.MULTILINE,
)


def masked(text: str, instead: str = "***") -> str:
    """The text with the value of every `key=` (and the like) of a query replaced."""
    return _IN_QUERY.sub(rf"\g<1>{instead}", text) if "=" in text else text


def masked_lines(text: str, instead: str = "***") -> str:
    """Lines that show headers, or a query as mitmdump does (`key: …`, and a list where there are several), coloured or
    not, without the values that are secrets."""
    return _LINE.sub(rf"\g<1> {instead}", text) if ":" in text else text


def clean(message: http.Message) -> None:
    """Take the secrets out of a message's headers (and of a request's URL), in place."""
    for name in SECRET_HEADERS:
        if name in message.headers:
            message.headers[name] = REMOVED
    if isinstance(message, http.Request):
        message.path = masked(message.path, REMOVED)
