"""URLs from users: checks base URLs, and masks secrets of values in messages."""

import re
from urllib.parse import SplitResult, urlsplit

_MAX_CHARACTERS = 120  # characters of a value in a message


def base_url(url: str) -> SplitResult:
    """The parts of a base URL of an HTTP service. Raises ValueError, whose message does not repeat the URL."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("must be an http or https URL, such as http://127.0.0.1:9912")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError("may have a path, but no query, fragment, user name or password")
    return parts


def is_origin(url: str) -> bool:
    """Whether this is a web origin, such as https://app.example:8443."""
    try:
        parts = base_url(url)
    except ValueError:
        return False
    return url == f"{parts.scheme}://{parts.netloc}"


def redacted(value: object) -> str:
    """A value for a message: passwords and keys in URLs are masked, and it is cut to one line."""
    if not isinstance(value, str):
        return repr(value)
    head, at, tail = value.rpartition("@")
    if at:
        name = re.match(r"([\w.-]+=)?([A-Za-z][A-Za-z0-9+.-]*://)?", head)
        value = f"{name[0] if name else ''}***@{tail}"
    value = re.sub(r"([?#]).+", r"\1***", value, flags=re.DOTALL)
    return repr(value if len(value) <= _MAX_CHARACTERS else f"{value[:_MAX_CHARACTERS]}…")


MODELS_ONLY = "~models"
"""The end of a user name in the proxy's URL that asks the proxy to decrypt only connections to models' hosts. It cannot
be part of a session's name."""


def proxy_user(text: str) -> tuple[str, bool]:
    """The session that a user name of the proxy's URL names ("" for none), and whether it ends with MODELS_ONLY."""
    return text.removesuffix(MODELS_ONLY), text.endswith(MODELS_ONLY)
