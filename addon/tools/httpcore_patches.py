"""Keep-alive connections of HTTP clients: no request may receive bytes of another request's answer.

If an upstream sends more bytes than its answer has, they would become the beginning of the next answer on that
connection. Therefore a connection with surplus bytes is closed. Surplus that arrives too late to be noticed reaches
only the same owner: a connection is reused only for the same credentials.

An answer without a length ends with its connection. Below TLS anyone on the way can end that, so such an answer is
whole only if the server ended it within TLS.

httpcore2 has no option for any of this, so three of its methods are replaced here, for all clients of the process. If
they are missing, importing this module fails and the proxy does not start. A fourth one is replaced because it is slow:
with each request the pool asks each idle connection whether it is readable, and for that all that is known of its
socket was gathered.
"""

import ssl
from collections.abc import Hashable
from importlib.metadata import version
from typing import Any

import anyio.abc
import h11
import httpcore2
from httpcore2._async.http11 import AsyncHTTP11Connection
from httpcore2._backends.anyio import AnyIOStream
from httpcore2._utils import is_socket_readable

OWNER = "toolgraft_owner"
"""The request extension that names the owner of the connections to use: any comparable value."""


def _check() -> None:
    for owner, name in (
        (AsyncHTTP11Connection, "_response_closed"),
        (AsyncHTTP11Connection, "_receive_event"),
        (httpcore2.URL, "origin"),
        (AnyIOStream, "get_extra_info"),
    ):
        if not hasattr(owner, name):
            raise RuntimeError(f"toolgraft does not fit httpcore2 {version('httpcore2')}: it has no {name}")


_check()
_response_closed = AsyncHTTP11Connection._response_closed
_receive_event = AsyncHTTP11Connection._receive_event
_handle = httpcore2.AsyncConnectionPool.handle_async_request
_get_extra_info = AnyIOStream.get_extra_info


async def response_closed(self: AsyncHTTP11Connection) -> None:
    """httpcore2's method, except that a connection with surplus bytes is closed."""
    if _has_surplus(self):
        await self.aclose()
    else:
        await _response_closed(self)


async def receive_event(self: AsyncHTTP11Connection, timeout: float | None = None) -> h11.Event | type[h11.PAUSED]:
    """httpcore2's method, except that an answer that ends with its connection must have been ended by the server."""
    event = await _receive_event(self, timeout)
    ends_with_connection = isinstance(event, h11.EndOfMessage) and self._h11_state.trailing_data[1]
    if ends_with_connection and not ended_by_server(self._network_stream.get_extra_info("ssl_object")):
        raise httpcore2.RemoteProtocolError("the server closed the connection in the middle of an answer")
    return event


async def handle_async_request(self: httpcore2.AsyncConnectionPool, request: httpcore2.Request) -> httpcore2.Response:
    """httpcore2's method, except that requests with an OWNER use only that owner's connections."""
    if (owner := request.extensions.get(OWNER)) is not None:
        request.url = _OwnedUrl(request.url, owner)
    return await _handle(self, request)


def get_extra_info(self: AnyIOStream, info: str) -> Any:
    """httpcore2's method, except that the socket is looked up once."""
    if info != "is_readable":
        return _get_extra_info(self, info)
    if (socket := self.__dict__.get("_toolgraft_socket")) is None:
        socket = self.__dict__["_toolgraft_socket"] = self._stream.extra(anyio.abc.SocketAttribute.raw_socket, None)
    return is_socket_readable(socket)


AsyncHTTP11Connection._response_closed = response_closed  # type: ignore[method-assign]
AsyncHTTP11Connection._receive_event = receive_event  # type: ignore[method-assign]
httpcore2.AsyncConnectionPool.handle_async_request = handle_async_request  # type: ignore[method-assign]
AnyIOStream.get_extra_info = get_extra_info  # type: ignore[method-assign]


def ended_by_server(tls: ssl.SSLObject | None) -> bool:
    """Whether a connection that has ended was ended by the server, as far as can be known."""
    if tls is None:
        return True
    try:
        return not tls.read(1)
    except ssl.SSLZeroReturnError:
        return True
    except ssl.SSLError:
        return False


def _has_surplus(connection: AsyncHTTP11Connection) -> bool:
    """Whether bytes were read behind the answer. Unread bytes of the socket are httpcore2's own check, before reuse."""
    if connection._h11_state.trailing_data[0]:
        return True
    tls: Any = connection._network_stream.get_extra_info("ssl_object")
    if tls is None:
        return False
    try:
        return bool(tls.read(1))
    except ssl.SSLError:  # nothing there, or the connection has ended, which its next use will notice
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
