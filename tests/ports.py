"""Free ports for servers of tests."""

import socket

_given: set[int] = set()


def free_port() -> int:
    """A free port of 127.0.0.1. Never returns a port twice, because its server may not listen yet."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port
