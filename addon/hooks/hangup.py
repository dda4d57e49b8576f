"""Watches for the hang-up of a client while a hook waits on its behalf."""

import asyncio

from mitmproxy.connection import Client, ConnectionState

from addon.hooks.draining import InFlight

_CLIENT_POLL_INTERVAL = 0.2
"""Seconds between two checks that a waiting client is still connected."""


class Hangup:
    """Detects that the client of a waiting request has closed its side, or that the proxy must not wait any longer.
    mitmproxy reports no disconnection while a hook runs, so the connection is polled.

    A client that has closed only its sending half counts as gone too: mitmproxy then closes an HTTP/1 connection."""

    def __init__(self, client: Client, in_flight: InFlight) -> None:
        self.client = client
        self.in_flight = in_flight
        self.waited = False

    async def wait(self) -> None:
        """Returns once the client has hung up, or the proxy ends."""
        self.waited = True
        while self.client.state is ConnectionState.OPEN and not self.in_flight.is_over:  # noqa: ASYNC110
            await asyncio.sleep(_CLIENT_POLL_INTERVAL)

    @property
    def missed(self) -> bool:
        """Whether the client hung up after the last check of a `wait` that was cancelled."""
        return self.waited and self.client.state is not ConnectionState.OPEN
