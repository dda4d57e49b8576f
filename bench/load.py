"""A light client: HTTP/1.1 over persistent connections, one request after the other on each."""

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

_CLOSE = 60.0
"""Seconds within which a request must have its answer."""

_END = b"\r\n0\r\n\r\n"
_CHUNKED = -1  # the length of an answer without Content-Length


@dataclass(slots=True)
class Result:
    """`seconds` from the first request to the last answer; `latencies` in seconds, one per request."""

    seconds: float
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def p50(self) -> float:
        return median(self.latencies)


class _Connection(asyncio.Protocol):
    """Sends a request as soon as the previous one is answered, while `more()` is true."""

    def __init__(self, head: bytes, bodies: Iterator[list[bytes]], each: Callable[[float, bytes], bool]) -> None:
        self.head = head
        self.bodies = bodies
        self.each = each
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.need = 0
        self.begun = 0.0
        self.running = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def go(self) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.running = True
        if self.transport.is_closing():
            self.fail(RuntimeError("the proxy closed the connection between two rounds"))
        else:
            self.send()

    def send(self) -> None:
        pieces = next(self.bodies)
        length = sum(map(len, pieces))
        self.begun = time.perf_counter()
        self.transport.writelines([self.head % length, *pieces])

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer = self.buffer + data if self.buffer else data
        if not self.need:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            chunked = b"\r\ntransfer-encoding: chunked" in buffer[: end + 2].lower()
            self.need = _CHUNKED if chunked else end + 4 + length_of(buffer[:end])
        if not buffer.endswith(_END) if self.need == _CHUNKED else len(buffer) < self.need:
            return
        seconds = time.perf_counter() - self.begun
        self.buffer, self.need = b"", 0
        if not buffer.startswith(b"HTTP/1.1 200"):
            self.fail(RuntimeError(f"the proxy answered {buffer[:300]!r}"))
        elif self.each(seconds, buffer):
            self.send()
        else:
            self.running = False
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        self.running = False
        if not self.done.done():
            self.done.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.running:
            self.fail(RuntimeError(f"the proxy closed the connection: {exc}"))


class _Stream(_Connection):
    """The same for event streams, with the latency of the first event."""

    first = 0.0

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.first and b"data: " in self.buffer:
            self.first = time.perf_counter() - self.begun
        if not self.buffer.endswith(_END):
            return
        buffer, first = self.buffer, self.first
        self.buffer, self.first = b"", 0.0
        if not buffer.startswith(b"HTTP/1.1 200"):
            self.fail(RuntimeError(f"the proxy answered {buffer[:300]!r}"))
        elif self.each(first, buffer):
            self.send()
        else:
            self.running = False
            self.done.set_result(None)


API_KEY = "not-a-key"
"""The API key of all clients."""


def length_of(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        raise RuntimeError(f"an answer without content-length: {head!r}")
    end = lower.find(b"\r\n", at + 2)
    return int(lower[at + 17 : end if end > 0 else None])


def head(port: int, path: str) -> bytes:
    """The head of a request, with `%d` where the body's length goes."""
    escaped = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n".replace("%", "%%")
    common = "user-agent: google-genai-sdk/3.4.0 gl-python/3.13\r\naccept: */*\r\naccept-encoding: gzip, deflate\r\n"
    key = f"x-goog-api-key: {API_KEY}\r\ncontent-type: application/json\r\n"
    return (escaped + common + key + "content-length: %d\r\n\r\n").encode()


class Clients:
    """Clients that continue their conversations from round to round, on the same connections."""

    def __init__(self, connections: list[_Connection]) -> None:
        self._connections = connections
        self._result = Result(0.0)
        self._until = 0.0
        self._left = 0
        for connection in connections:
            connection.each = self._each

    @classmethod
    async def connect(
        cls, port: int, head: bytes, bodies: list[Iterator[list[bytes]]], *, streams: bool = False
    ) -> "Clients":
        """One client for each sequence of bodies."""
        kind = _Stream if streams else _Connection
        loop = asyncio.get_running_loop()
        made = []
        for one in bodies:
            _, connection = await loop.create_connection(
                functools.partial(kind, head, one, lambda _, __: False), "127.0.0.1", port
            )
            made.append(connection)
        return cls(made)

    def __len__(self) -> int:
        return len(self._connections)

    def _each(self, seconds: float, _: bytes) -> bool:
        self._result.latencies.append(seconds)
        if self._left:
            self._left -= 1
            return self._left >= len(self._connections)
        return time.perf_counter() < self._until

    async def run(self, *, seconds: float = 0.0, requests: int = 0) -> Result:
        """A round of this many seconds, or of this many requests in total. Each client sends at least one."""
        started = time.perf_counter()
        self._result = Result(0.0)
        self._until = started + seconds
        self._left = requests
        for connection in self._connections:
            connection.go()
        async with asyncio.timeout(seconds + _CLOSE + requests / 20):
            await asyncio.gather(*(connection.done for connection in self._connections))
        self._result.seconds = time.perf_counter() - started
        return self._result

    def close(self) -> None:
        for connection in self._connections:
            connection.running = False
            connection.transport.close()
