"""Who asks, as far as a request says it outside of its body: an API key, or else the project that it names.

Never a token, an address or a version: tokens are replaced every hour, and addresses hidden by balancers.
"""

import re
from collections.abc import Callable
from urllib.parse import unquote

_PROJECT = re.compile(r"/projects/([^/?:]+)")
_TOKENS = ("ya29.", "eyJ")
"""How the tokens of OAuth begin, and those that are JSON."""


def asker_of(path: str, header: Callable[[str], str | None]) -> str:
    """`path` with its query; `header` gives a header by its name in lower case. The result may be a secret: only a
    digest of it may be kept. "" for nobody in particular."""
    key = header("x-goog-api-key") or _query_key(path) or _bearer_key(path, header("authorization") or "")
    if key:
        return asker_with(key)
    named = _PROJECT.search(path)
    project = unquote(named[1]) if named else header("x-goog-user-project")
    return f"project:{project}" if project else ""


def asker_with(key: str) -> str:
    """Who asks with an API key."""
    return f"key:{key}"


def _query_key(path: str) -> str:
    if "key=" not in path:
        return ""
    pairs = (pair.partition("=") for pair in path.partition("?")[2].split("&"))
    return next((unquote(value) for name, _, value in pairs if name in ("key", "%24key", "$key")), "")


def _bearer_key(path: str, authorization: str) -> str:
    """OpenAI's clients send the Gemini API's key as a bearer. Anywhere else a bearer is a token, however it begins."""
    if "/openai/" not in path.partition("?")[0] or _PROJECT.search(path):
        return ""
    kind, _, token = authorization.partition(" ")
    token = token.strip()
    return token if kind.lower() == "bearer" and not token.startswith(_TOKENS) else ""
