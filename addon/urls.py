"""URLs, hosts and names of headers from users: checks them, and masks secrets in messages."""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_MAX_CHARACTERS = 120  # the most characters of a value in a message


def base_url(url: str) -> SplitResult:
    """The parts of an HTTP service's base URL. Raises ValueError, whose message does not repeat the URL."""
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


def is_host_name(text: str) -> bool:
    """Whether this is a plain host name, without scheme, port or path."""
    return bool(text) and set(text.lower()) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def header_name(value: str) -> str:
    if not value.isascii() or not value.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"{value!r} is not a header name")
    return value


def is_loopback(host: str) -> bool:
    """Whether a host name or address literal always means this machine."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def redacted(value: object) -> str:
    """A value for a message: cut to one line, with passwords and keys in URLs masked."""
    if not isinstance(value, str):
        return repr(value)
    head, at, tail = value.rpartition("@")
    if at:
        name = re.match(r"([\w.-]+=)?([A-Za-z][A-Za-z0-9+.-]*://)?", head)
        value = f"{name[0] if name else ''}***@{tail}"
    value = re.sub(r"([?#]).+", r"\1***", value, flags=re.DOTALL)
    return repr(value if len(value) <= _MAX_CHARACTERS else f"{value[:_MAX_CHARACTERS]}…")


MODELS_ONLY = "~models"
"""Suffix of the user name in the proxy's URL: decrypt only connections to models. No session name can contain it."""


def proxy_user(text: str) -> tuple[str, bool]:
    """The session named by a user name in the proxy's URL ("" for none), and whether the name ends with MODELS_ONLY."""
    return text.removesuffix(MODELS_ONLY), text.endswith(MODELS_ONLY)
