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

_IN_QUERY = re.compile(r"([?&](?:key|access_token|api_key|token)=)[^&\s\x1b]+", re.IGNORECASE)

_COLOUR = r"(?:\x1b\[[\d;]*m)*"
_HEADER_LINE = re.compile(rf"\A({_COLOUR}\s*{_COLOUR}(?:{'|'.join(SECRET_HEADERS)}){_COLOUR}: ).*", re.IGNORECASE)


def masked(text: str, instead: str = "***") -> str:
    """The text with the value of every `key=` (and the like) of a query replaced."""
    return _IN_QUERY.sub(rf"\g<1>{instead}", text) if "=" in text else text


def masked_header(line: str, instead: str = "***") -> str:
    """A line that shows a header, coloured or not, without the value where that is a secret."""
    return _HEADER_LINE.sub(rf"\g<1>{instead}", line) if ": " in line else line


def clean(message: http.Message) -> None:
    """Take the secrets out of a message's headers (and of a request's URL), in place."""
    for name in SECRET_HEADERS:
        if name in message.headers:
            message.headers[name] = REMOVED
    if isinstance(message, http.Request):
        message.path = masked(message.path, REMOVED)
