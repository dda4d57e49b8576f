"""Connections that HTTP clients keep, and what keeps one request's answer from being another's.

An upstream that sends more than its answer's length has put words into the next answer on the connection. So a
connection on which more has come than was asked for is closed, whoever keeps it; and what comes too late to be seen is
at least nobody else's: a connection is used again for the same credentials alone.

httpcore2 has no option for either: two of its methods are replaced here, for all clients of the process. One that
does not have them fails when this module is imported, so that the proxy does not start.
"""

import ssl
from collections.abc import Hashable
from importlib.metadata import version
from typing import Any

import httpcore2
from httpcore2._async.http11 import AsyncHTTP11Connection

OWNER = "toolgraft_owner"
"""The extension of a request by which it says whose connections it goes by: anything that can be compared."""


def _check() -> None:
    for owner, name in ((AsyncHTTP11Connection, "_response_closed"), (httpcore2.URL, "origin")):
        if not hasattr(owner, name):
            raise RuntimeError(f"toolgraft does not fit httpcore2 {version('httpcore2')}: it has no {name}")


_check()
_response_closed = AsyncHTTP11Connection._response_closed
_handle = httpcore2.AsyncConnectionPool.handle_async_request


async def response_closed(self: AsyncHTTP11Connection) -> None:
    """As httpcore2's, but a connection on which more has come is closed."""
    if _has_surplus(self):
        await self.aclose()
    else:
        await _response_closed(self)


async def handle_async_request(self: httpcore2.AsyncConnectionPool, request: httpcore2.Request) -> httpcore2.Response:
    """As httpcore2's, but for requests that say whose they are."""
    if (owner := request.extensions.get(OWNER)) is not None:
        request.url = _OwnedUrl(request.url, owner)
    return await _handle(self, request)


AsyncHTTP11Connection._response_closed = response_closed  # type: ignore[method-assign]
httpcore2.AsyncConnectionPool.handle_async_request = handle_async_request  # type: ignore[method-assign]


def _has_surplus(connection: AsyncHTTP11Connection) -> bool:
    """What the system still has of a socket, httpcore2 asks for itself before it uses a connection again."""
    if connection._h11_state.trailing_data[0]:
        return True
    tls: Any = connection._network_stream.get_extra_info("ssl_object")
    if tls is None:
        return False
    try:
        return bool(tls.read(1))
    except ssl.SSLError:  # nothing there, or an end of the connection, which whoever uses it next will see
        return False


class _Owned(httpcore2.Origin):
    def __init__(self, origin: httpcore2.Origin, owner: Hashable) -> None:
        super().__init__(origin.scheme, origin.host, origin.port)
        self.owner = owner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Owned) and self.owner == other.owner and super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


class _OwnedUrl(httpcore2.URL):
    def __init__(self, url: httpcore2.URL, owner: Hashable) -> None:
        super().__init__(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        self._owner = owner

    @property
    def origin(self) -> httpcore2.Origin:
        return _Owned(super().origin, self._owner)
