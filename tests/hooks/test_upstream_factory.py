"""The front doors' connection to the model: who owns the flows, and which proxy they use."""

from collections.abc import Callable

import pytest
from mitmproxy import http
from mitmproxy.addons.upstream_auth import UpstreamAuth

from addon.gateway.engine import Caller
from addon.hooks.upstream_flows import MitmUpstreamFactory
from addon.loop.upstream import Address, Outgoing, Upstream
from tests.hooks.harness import GOOGLE, PATH, Hooks

URL = f"https://{GOOGLE}{PATH}"
CALLER = Caller("s", "a-key", ("10.0.0.7", 4321))


class Seen:
    """An addon of the user's."""

    def __init__(self) -> None:
        self.flows: list[http.HTTPFlow] = []

    def request(self, flow: http.HTTPFlow) -> None:
        self.flows.append(flow)


def upstream(hooks: Hooks) -> Upstream:
    return hooks.part(MitmUpstreamFactory).upstream(CALLER, b"sent", streams=False)


async def outgoing(hooks: Hooks) -> Outgoing:
    """A request as it is sent."""
    exchange = await upstream(hooks).watcher.begin(Address("POST", URL, [(b"x-goog-api-key", b"a-key")]), b"{}")
    sent = exchange.outgoing
    assert isinstance(sent, Outgoing)
    await exchange.close(None)
    return sent


async def test_each_request_is_a_flow_of_the_caller_s(make: Callable[..., Hooks]) -> None:
    hooks, flows = make(), Seen()
    hooks.context.master.addons.add(flows)
    await outgoing(hooks)
    (flow,) = flows.flows
    assert flow.client_conn.peername == CALLER.address
    assert flow.request.pretty_url == URL
    assert flow.get_state(), "it can be written"
    origin = hooks.part(MitmUpstreamFactory).shadow_flows.flows[flow]
    assert (origin.session, origin.sent) == ("s", b"sent")
    assert hooks.route(flow) is None, "it is grafted already"


@pytest.mark.parametrize(
    ("to", "url", "host"),
    [
        ("http://127.0.0.1:9/q", f"http://127.0.0.1:9/q{PATH}", b"127.0.0.1:9"),
        ("http://[::1]:9", f"http://[::1]:9{PATH}", b"[::1]:9"),
    ],
)
async def test_a_redirect_is_not_to_be_seen_in_the_flow(
    make: Callable[..., Hooks], to: str, url: str, host: bytes
) -> None:
    hooks, flows = make(redirect=[f"{GOOGLE}={to}"]), Seen()
    hooks.context.master.addons.add(flows)
    sent = await outgoing(hooks)
    assert sent.url == url
    assert [value for name, value in sent.headers if name.lower() == b"host"] == [host]
    assert flows.flows[0].request.url == URL
    assert flows.flows[0].request.headers["host"] == GOOGLE


@pytest.mark.parametrize(
    ("mode", "redirect", "proxy"),
    [
        (["regular"], [], ""),
        (["regular", "upstream:http://127.0.0.1:3128@8099"], [], "http://127.0.0.1:3128"),
        (["upstream:http://127.0.0.1:3128"], [f"{GOOGLE}=http://127.0.0.1:1"], ""),
    ],
)
async def test_they_go_where_the_proxy_s_own_go(
    make: Callable[..., Hooks], mode: list[str], redirect: list[str], proxy: str
) -> None:
    hooks = make(redirect=redirect)
    hooks.context.master.addons.add(UpstreamAuth())  # of its options some are asked for
    hooks.context.options.update(mode=mode)
    await hooks.call("configure", {"mode"})
    sent = await outgoing(hooks)
    assert sent.proxy == proxy
    connections = upstream(hooks).transport(sent)
    assert connections is upstream(hooks).transport(sent), "pooled"
    direct = hooks.part(MitmUpstreamFactory).pool.connections_for(sent._replace(proxy=""))
    assert (connections is not direct) is bool(proxy)
