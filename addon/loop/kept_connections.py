"""Detects requests that were sent on a reused connection while the upstream was closing it.

Every client that reuses connections meets this race. The upstream did not process such a request, so it is sent once
more. A request on a new connection, or one whose answer has begun, is not repeated.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

Read = Callable[..., Awaitable[bytes]]


class Attempt:
    """One try to send a request. While it is entered, the HTTP client reports its steps through `extensions`."""

    def __init__(self) -> None:
        self._request_begun = False
        self._connected = False
        self._received = False
        self._token: Token[Attempt | None] | None = None

    @property
    def extensions(self) -> dict[str, Any]:
        """Extensions for the httpx2 request."""
        return {"trace": self._trace}

    @property
    def hit_closing_connection(self) -> bool:
        """Whether the connection was reused, and no bytes of an answer were received on it."""
        return self._request_begun and not self._connected and not self._received

    def mark_received(self) -> None:
        """Bytes were received."""
        self._received = True

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._token is not None
        _current.reset(self._token)

    async def _trace(self, step: str, info: dict[str, Any]) -> None:
        if step.startswith("http"):
            self._request_begun = True
            if step == "http2.receive_response_headers.failed":
                self._received = False  # the bytes were about the connection, or for another request
        elif step.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._connected = True
            stream = info["return_value"]
            stream.read = _recording(stream.read)


_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def _recording(read: Read) -> Read:
    async def recorded(*args: Any, **options: Any) -> bytes:
        data = await read(*args, **options)
        if data and (attempt := _current.get()) is not None:
            attempt.mark_received()
        return data

    return recorded
