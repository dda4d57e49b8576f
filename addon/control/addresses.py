"""The proxy's open ports, as its state folder names them."""

from pathlib import Path
from typing import Any

from addon.state_folder import read_object


def read_addresses(state: Path) -> dict[str, Any]:
    """The proxy's `proxy.json`: the URLs of the `regular` and `reverse` proxies, and the file `ca`; {} if missing or
    unreadable."""
    return read_object(state / "proxy.json")


def first_of(addresses: dict[str, Any], kind: str) -> str | None:
    """The first URL of a kind, `regular` or `reverse`."""
    urls = addresses.get(kind)
    return str(urls[0]) if isinstance(urls, list) and urls else None
