"""For regular proxies, bare and with the addon: Gemini's host is this machine."""

import socket
from typing import Any

from bench.processes import HOST

_getaddrinfo = socket.getaddrinfo


def _on_loopback(host: Any, *arguments: Any, **more: Any) -> Any:
    return _getaddrinfo("127.0.0.1" if host == HOST else host, *arguments, **more)


socket.getaddrinfo = _on_loopback
