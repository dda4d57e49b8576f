"""Identifies who asks by the request's path and headers: by the API key, or else by the project that the request names.

Tokens, addresses and versions are not used: tokens are replaced every hour, and load balancers hide addresses.
"""

import re
from collections.abc import Callable
from urllib.parse import unquote

_PROJECT = re.compile(r"/projects/([^/?:]+)")
_TOKENS = ("ya29.", "eyJ")
"""Prefixes of OAuth tokens and of JSON Web Tokens."""


def asker_of(path: str, header: Callable[[str], str | None]) -> str:
    """Who asks; "" if unknown. The result may be a secret: store only a digest of it.

    `path`: with its query. `header`: returns a header by its name in lower case.
    """
    key = header("x-goog-api-key") or _query_key(path) or _bearer_key(path, header("authorization") or "")
    if key:
        return asker_of_key(key)
    named = _PROJECT.search(path)
    project = unquote(named[1]) if named else header("x-goog-user-project")
    return f"project:{project}" if project else ""


def asker_of_key(key: str) -> str:
    return f"key:{key}"


def _query_key(path: str) -> str:
    if "key=" not in path:
        return ""
    pairs = (pair.partition("=") for pair in path.partition("?")[2].split("&"))
    return next((unquote(value) for name, _, value in pairs if name in ("key", "%24key", "$key")), "")


def _bearer_key(path: str, authorization: str) -> str:
    """The API key in a bearer header, as OpenAI's clients send it. On other paths a bearer is always a token."""
    if "/openai/" not in path.partition("?")[0] or _PROJECT.search(path):
        return ""
    kind, _, token = authorization.partition(" ")
    token = token.strip()
    return token if kind.lower() == "bearer" and not token.startswith(_TOKENS) else ""
