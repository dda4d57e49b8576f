"""The way out of the front doors: whose flows they are, and through which proxy they go."""

from collections.abc import Callable

import pytest
from mitmproxy import http
from mitmproxy.addons.upstream_auth import UpstreamAuth

from addon.doors.outward import Caller
from addon.hooks.doorways import Doorways
from addon.loop.upstream import Address, Upstream
from tests.hooks.harness import GOOGLE, PATH, Hooks

URL = f"https://{GOOGLE}{PATH}"
CALLER = Caller("s", "a-key", ("10.0.0.7", 4321))


class Seen:
    """An addon of the user's."""

    def __init__(self) -> None:
        self.flows: list[http.HTTPFlow] = []

    def request(self, flow: http.HTTPFlow) -> None:
        self.flows.append(flow)


def upstream(hooks: Hooks, to: str | None = None) -> Upstream:
    return hooks.part(Doorways).upstream(CALLER, Address("POST", URL, [(b"x-goog-api-key", b"a-key")], to), b"sent")


async def test_each_request_is_a_flow_of_the_caller_s(make: Callable[..., Hooks]) -> None:
    hooks, seen = make(), Seen()
    hooks.context.master.addons.add(seen)
    watched = await upstream(hooks).watcher.sent(Address("POST", URL, []), b"{}")
    (flow,) = seen.flows
    assert flow.client_conn.peername == CALLER.address
    assert flow.request.pretty_url == URL
    assert flow.get_state(), "it can be written"
    origin = hooks.part(Doorways).watching.flows[flow]
    assert (origin.session, origin.sent) == ("s", b"sent")
    assert hooks.route(flow) is None, "it is grafted already"
    await watched.ended(None)


@pytest.mark.parametrize(
    ("mode", "to", "proxied"),
    [
        (["regular"], None, False),
        (["regular", "upstream:http://127.0.0.1:3128@8099"], None, True),
        (["upstream:http://127.0.0.1:3128"], "http://127.0.0.1:1", False),
    ],
)
async def test_they_go_where_the_proxy_s_own_go(
    make: Callable[..., Hooks], mode: list[str], to: str | None, proxied: bool
) -> None:
    hooks = make()
    hooks.context.master.addons.add(UpstreamAuth())  # of its options some are asked for
    hooks.context.options.update(mode=mode)
    await hooks.call("configure", {"mode"})
    client = upstream(hooks, to).client
    assert client is upstream(hooks, to).client, "pooled"
    assert (client is not hooks.part(Doorways).clients.to(to or URL)) is proxied
