"""Protects the proxy's ports from web pages: the rules for `Host`, `Origin` and `Sec-Fetch-Site`.

Pure, and the same for the control API and the proxy's listeners. A web page can make a browser send requests to
loopback, but it cannot forge these three headers.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from addon.core.security.untrusted import cached_if_short

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@cached_if_short(256)
def host_allowed(host_header: str, allow_hosts: tuple[str, ...]) -> bool:
    """Whether a `Host` header is safe from DNS rebinding.

    Loopback names, IP literals and the names in `allow_hosts` (lower case) are safe. The port does not matter.
    """
    host = _host_of(host_header)
    return host is not None and (_is_address(host) or _is_local_name(host) or host in allow_hosts)


def page_allowed(origin: str | None, fetch_site: str | None, allow_origins: Collection[str], *, host: str = "") -> bool:
    """Whether a request with this `Origin` and `Sec-Fetch-Site` (None: the header is absent) may be served.

    Clients other than browsers send neither header. Allowed are pages of the port itself and of the listed origins
    (lower case, such as `https://app.example:8443`). Pages of other ports of this machine are refused, because any
    program that serves pages there could control the proxy. `host`: the request's `Host`, already checked; "" for a
    port that serves no pages.
    """
    site = None if fetch_site is None else fetch_site.strip().lower()
    if origin is None:  # an image, a link, a form sent by GET
        return site in (None, "none", "same-origin")
    return _is_listed(origin, allow_origins) or (site in (None, "same-origin") and _is_own(origin, host))


def _is_listed(origin: str, allow_origins: Collection[str]) -> bool:
    key = _origin_key(origin)
    return key is not None and any(key == _origin_key(one) for one in allow_origins)


def _is_own(origin: str, host_header: str) -> bool:
    """Whether the origin is the host and port that the request was sent to."""
    key, host = _origin_key(origin), _host_of(host_header)
    if key is None or host is None or key[1] != host:
        return False
    port = host_header.rpartition("]")[2].partition(":")[2].strip()
    return key[2] == (int(port) if port else _DEFAULT_PORTS[key[0]])


def _host_of(header: str) -> str | None:
    """The host of `host[:port]`, in lower case, without brackets and trailing dot; None for any other form."""
    text = header.strip().lower()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not _is_address(host) or ":" not in host:
            return None
        port = rest.removeprefix(":") if rest.startswith(":") else rest and "x"
    else:
        host, _, port = text.partition(":")
        host = host.removesuffix(".")
        if not host or not _NAME_CHARACTERS.issuperset(host):
            return None
    return host if not port or (port.isascii() and port.isdigit()) else None


def _origin_key(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an http(s) origin; None for `null` and any other value."""
    try:
        parts = urlsplit(origin.strip().lower())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username is not None or parts.path.strip("/"):
        return None
    return parts.scheme, parts.hostname.removesuffix("."), _DEFAULT_PORTS[parts.scheme] if port is None else port


def _is_local_name(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
