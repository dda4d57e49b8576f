"""What the doors need of the proxy around them: a way out for their requests, on which each is seen."""

from typing import NamedTuple, Protocol

from addon.loop.upstream import Upstream


class Caller(NamedTuple):
    """Who asks: the session, the key for the upstream, and from where (host and port, as far as is known)."""

    session: str
    key: str
    address: tuple[str, int]


class UpstreamFactory(Protocol):
    def upstream(self, caller: Caller, sent: bytes, *, streams: bool) -> Upstream:
        """For one turn of the caller's. `sent` is the request that the turn began with, as a client of Gemini's would
        have sent it; `streams`: whether its answer comes as a stream."""
        ...
