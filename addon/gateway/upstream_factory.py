"""The interface through which the gateway sends requests upstream; the proxy records each of them."""

from typing import NamedTuple, Protocol

from addon.loop.upstream import Upstream


class Caller(NamedTuple):
    """The session, the upstream API key, and if known the caller's host, port and User-Agent."""

    session: str
    key: str
    address: tuple[str, int]
    user_agent: str | None = None


class UpstreamFactory(Protocol):
    def upstream(self, caller: Caller, sent: bytes, *, streams: bool) -> Upstream:
        """An upstream for one turn. `sent`: the request that starts the turn, as a Gemini client would send it.
        `streams`: whether the answer is a stream."""
        ...
