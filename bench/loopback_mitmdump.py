"""mitmdump for which Gemini's host is this machine. This is no script: with a script, the addon asks every
addon for its hooks at each event."""

import socket
import sys
from typing import Any

from mitmproxy.tools.main import mitmdump

from bench.processes import HOST

_getaddrinfo = socket.getaddrinfo


def _on_loopback(host: Any, *arguments: Any, **more: Any) -> Any:
    return _getaddrinfo("127.0.0.1" if host == HOST else host, *arguments, **more)


if __name__ == "__main__":
    socket.getaddrinfo = _on_loopback
    sys.exit(mitmdump())
