"""`python -m addon.hooks.shared_ports`: mitmdump below a supervisor, whose processes share the proxy's ports.

mitmproxy opens its ports before it loads scripts, so the addon itself would be too late.
"""

import asyncio
import sys

from mitmproxy.proxy.mode_servers import AsyncioServerInstance
from mitmproxy.tools.main import mitmdump

from addon.supervisor.membership import Membership, membership


def share_ports(membership: Membership) -> None:
    """Have mitmproxy listen on the supervisor's sockets. Only TCP: a QUIC connection cannot change its process, so
    there is no HTTP/3."""

    async def listen(self: AsyncioServerInstance, host: str, port: int) -> list[asyncio.Server]:  # type: ignore[type-arg]
        if self.mode.transport_protocol == "udp":
            raise OSError(f"{self.mode.description}: --workers shares only ports of TCP")
        sockets = membership.listen(host, port)
        return [await asyncio.start_server(self.handle_stream, sock=one) for one in sockets]

    AsyncioServerInstance.listen = listen  # type: ignore[assignment]


def main() -> None:
    member = membership()
    if member is None:
        sys.exit("toolgraft: this program is for the supervisor: use `toolgraft serve --workers N`")
    share_ports(member)
    mitmdump(sys.argv[1:])


if __name__ == "__main__":
    main()
