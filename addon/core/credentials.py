"""What of a request proves who sends it, or lets its holder in: the names of headers and of a URL's parameters."""

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

HEADERS = (
    "authorization",
    "proxy-authorization",
    "x-goog-api-key",
    "x-goog-iam-authorization-token",
    "x-goog-user-project",
    "api-key",  # of gateways that speak for Gemini
    "x-api-key",
    "x-auth-token",
    "x-amz-security-token",
    "cookie",
    "set-cookie",
)
PARAMETERS = ("key", "$key", "access_token", "api_key", "apikey", "oauth_token", "token", "x-amz-security-token")

_HEADERS = frozenset(name.encode() for name in HEADERS)


def is_secret_parameter(name: str) -> bool:
    """Whether this is the name of a secret in a query, however it is written there."""
    return unquote_plus(name).lower() in PARAMETERS


def secret_parameters(url: str) -> list[str]:
    """The values of a URL's secret parameters, as they stand there."""
    _, question, query = url.partition("?")
    if not question:
        return []
    pairs = (pair.partition("=") for pair in re.split("[&;#]", query))
    return [value for name, equals, value in pairs if equals and is_secret_parameter(name)]


def credentials(url: str, headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
    """What tells one sender from another: requests that differ in it are of different people."""
    found = [value for name, value in headers if name.lower() in _HEADERS]
    return (*found, *(value.encode("utf-8", "surrogateescape") for value in secret_parameters(url)))
