"""A request that came too late: on a kept connection that the upstream was closing.

Whoever keeps connections meets this. The upstream has seen nothing of the request, or has not cared for it: it is sent
once more. A connection that is new, or on which some of the answer has come, is another matter.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

Read = Callable[..., Awaitable[bytes]]


class Attempt:
    """One try to send a request. The HTTP client tells it of its steps (`extensions`), while it is entered."""

    def __init__(self) -> None:
        self._begun = False
        self._connected = False
        self._heard = False
        self._token: Token[Attempt | None] | None = None

    @property
    def extensions(self) -> dict[str, Any]:
        """Of the request, as httpx2 has them."""
        return {"trace": self._trace}

    @property
    def was_late(self) -> bool:
        """Whether the connection had been used before, and nothing of an answer has come on it."""
        return self._begun and not self._connected and not self._heard

    def hear(self) -> None:
        """Some bytes have come."""
        self._heard = True

    def __enter__(self) -> None:
        self._token = _now.set(self)

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._token is not None
        _now.reset(self._token)

    async def _trace(self, step: str, info: dict[str, Any]) -> None:
        if step.startswith("http"):
            self._begun = True
            if step == "http2.receive_response_headers.failed":
                self._heard = False  # what came was about the connection, or another request's
        elif step.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._connected = True
            stream = info["return_value"]
            stream.read = _heard(stream.read)


_now: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def _heard(read: Read) -> Read:
    async def heard(*args: Any, **options: Any) -> bytes:
        data = await read(*args, **options)
        if data and (attempt := _now.get()) is not None:
            attempt.hear()
        return data

    return heard
