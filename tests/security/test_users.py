"""Where users sign in, a session belongs to its user, unless it is shared on purpose."""

from collections.abc import Callable

import pytest

from tests.hooks.conftest import make as make
from tests.hooks.harness import GOOGLE, LOCAL, PATH, Hooks, request

Make = Callable[..., Hooks]

REVERSE = f"reverse:https://{GOOGLE}"
LIVE = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"


@pytest.mark.parametrize(
    ("user", "prefix", "header", "shared", "session"),
    [
        ("alice", "", "", [], "alice"),
        ("alice", "", "alice", [], "alice"),
        ("alice", "/@alice", "", [], "alice"),
        ("alice", "", "bob", [], None),
        ("alice", "/@bob", "", [], None),
        ("alice", "/@bob", "alice", [], None),
        ("alice", "", "default", [], None),
        ("alice", "", "Alice", [], None),
        ("alice", "", "team", ["team=carol, alice"], "team"),
        ("alice", "/@team", "", ["other=*", "team=*"], "team"),
        ("alice", "", "team", ["team=carol"], None),
        ("alice", "", "team2", ["team=alice"], None),
        ("bob", "", "alice", ["alice=carol", "alice=bob"], "alice"),
        ("alice@example.org", "", "team", ["team=alice@example.org"], "team"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("GET", LIVE)])
async def test_a_session_belongs_to_its_user_unless_it_is_shared(
    method: str, path: str, user: str, prefix: str, header: str, shared: list[str], session: str | None, make: Make
) -> None:
    hooks = make(session_access=shared)
    headers = {"x-graft-session": header} if header else {}
    flow = request(f"http://{LOCAL}{prefix}{path}", headers=headers, mode=REVERSE, method=method)
    flow.metadata["proxyauth"] = (user, "password")
    await hooks.call("requestheaders", flow)
    if session is not None:
        assert flow.response is None
        assert hooks.route(flow) == ("live" if path == LIVE else "developer", session)
        return
    assert flow.response is not None
    assert flow.response.status_code == 403
    assert "graft_session_access" in (flow.response.text or "")
    assert hooks.route(flow) is None


async def test_the_user_who_signed_in_counts_whatever_a_tunnel_or_header_says(make: Make) -> None:
    hooks = make()
    proxy_headers = {"proxy-authorization": "Basic Ym9iOng="}  # bob:x
    tunnel = request(f"https://{GOOGLE}/", headers=proxy_headers, method="CONNECT")
    tunnel.metadata["proxyauth"] = ("alice", "password")
    await hooks.call("http_connect", tunnel)
    assert tunnel.response is None
    for headers in ({}, proxy_headers):
        flow = request(headers=headers, client=tunnel.client_conn)
        flow.metadata["proxyauth"] = ("alice", "password")
        await hooks.ask(flow)
        assert hooks.route(flow) == ("developer", "alice")
        assert "proxy-authorization" not in flow.request.headers


async def test_without_sign_in_a_session_is_open_to_everyone_who_names_it(make: Make) -> None:
    hooks = make(session_access=["team=carol"])
    flow = await hooks.ask(request(headers={"x-graft-session": "team"}))
    assert hooks.route(flow) == ("developer", "team")
