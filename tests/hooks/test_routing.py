"""The surface, session and destination of a request."""

import base64
import socket
from collections.abc import Callable
from typing import Any

import pytest
from mitmproxy import http
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from addon.hooks.routing import Routing
from addon.settings import Settings
from tests.hooks.harness import GOOGLE, LOCAL, PATH, Hooks, request

Make = Callable[..., Hooks]

REVERSE = f"reverse:https://{GOOGLE}"
BASIC = "Basic " + base64.b64encode(b"bob:x").decode()
VERTEX = "/v1/publishers/google/models/gemini-3-flash:streamGenerateContent"
ASSIST = "/v1internal:generateContent"


@pytest.mark.parametrize(
    ("url", "mode", "expected"),
    [
        (f"https://{GOOGLE}{PATH}", "regular", ("developer", "default")),
        (f"https://{GOOGLE.upper()}{PATH}", "regular", ("developer", "default")),
        (f"https://us-east1-aiplatform.googleapis.com{VERTEX}", "regular", ("vertex", "default")),
        (f"https://cloudcode-pa.googleapis.com{ASSIST}", "regular", ("codeassist", "default")),
        (f"https://{GOOGLE}/v1beta/models", "regular", None),
        (f"https://example.com{PATH}", "regular", None),
        (f"http://{LOCAL}{PATH}", REVERSE, ("developer", "default")),
        (f"http://{LOCAL}{VERTEX}", "reverse:http://127.0.0.1:9", ("vertex", "default")),
        (f"http://{LOCAL}/@bob{PATH}", REVERSE, ("developer", "bob")),
        (f"http://{LOCAL}/@bob/v1beta/models", REVERSE, None),
        (f"http://{LOCAL}/other", REVERSE, None),
        (f"https://{GOOGLE}/@bob{PATH}", "regular", None),
    ],
)
async def test_a_surface_is_found_by_host_or_in_reverse_mode_by_path(
    url: str, mode: str, expected: tuple[str, str] | None, make: Make
) -> None:
    hooks = make()
    flow = await hooks.ask(request(url, mode=mode))
    assert hooks.route(flow) == expected
    assert flow.response is None


async def test_only_what_is_posted_is_a_surfaces(make: Make) -> None:
    hooks = make()
    flow = await hooks.ask(request(method="GET"))
    assert hooks.route(flow) is None


SESSIONS = [
    ("", {}, "default"),
    ("", {"X-Graft-Session": "ann"}, "ann"),
    ("/@bob", {"x-graft-session": "ann"}, "bob"),
    ("", {"proxy-authorization": BASIC}, "bob"),
    ("", {"x-graft-session": "ann", "proxy-authorization": BASIC}, "ann"),
    ("", {"proxy-authorization": "Bearer x"}, "default"),
    ("", {"proxy-authorization": "Basic %%%"}, "default"),
]


@pytest.mark.parametrize(("prefix", "headers", "expected"), SESSIONS)
async def test_the_session_is_the_first_that_is_named_and_its_name_goes_no_further(
    prefix: str, headers: dict[str, str], expected: str, make: Make
) -> None:
    hooks = make()
    flow = await hooks.ask(request(f"http://{LOCAL}{prefix}{PATH}", headers=headers, mode=REVERSE))
    assert hooks.route(flow) == ("developer", expected)
    assert flow.request.path == PATH
    assert not {"x-graft-session", "proxy-authorization"} & {name.lower() for name in flow.request.headers}


async def test_users_of_the_proxy_who_share_a_session_do_not_take_over_each_other_s_answers(make: Make) -> None:
    hooks, senders = make(session_access=["team=*"]), set()
    for user in ("ann", "bob"):
        flow = request(headers={"x-graft-session": "team"})
        flow.metadata["proxyauth"] = (user, "pass-word")
        await hooks.ask(flow)
        incoming = hooks.part(Routing).routes[flow].incoming(flow.request, Settings())
        assert incoming is not None
        assert incoming.session == "team"
        senders.add(incoming.sender)
    assert len(senders) == 2


async def test_the_user_of_a_tunnel_is_the_session_of_all_that_comes_through_it(make: Make) -> None:
    hooks = make()
    connect = request(f"https://{GOOGLE}/", headers={"proxy-authorization": BASIC}, method="CONNECT")
    await hooks.call("http_connect", connect)
    assert connect.response is None
    for _ in range(2):
        flow = await hooks.ask(request(client=connect.client_conn))
        assert hooks.route(flow) == ("developer", "bob")
    assert hooks.route(await hooks.ask(request())) == ("developer", "default")


@pytest.mark.parametrize("url", [f"https://{GOOGLE}/v1beta/models", "http://example.com/"])
async def test_headers_for_the_proxy_are_removed_from_other_requests_too(url: str, make: Make) -> None:
    headers = {"X-Graft-Session": "ann", "Proxy-Authorization": BASIC, "x-other": "stays"}
    hooks = make()
    flow = await hooks.ask(request(url, headers=headers, method="GET"))
    assert dict(flow.request.headers).keys() - {"host", "content-length"} == {"x-other"}


@pytest.mark.parametrize(
    ("prefix", "headers"),
    [
        ("/@a%20b", {}),
        ("/@..", {}),
        ("", {"x-graft-session": "a b"}),
        ("", {"proxy-authorization": "Basic YTpiOmM6ZDpl"}),
    ],
)
async def test_a_name_that_cannot_be_a_sessions_is_a_400(prefix: str, headers: dict[str, str], make: Make) -> None:
    hooks = make()
    flow = await hooks.ask(request(f"http://{LOCAL}{prefix}{PATH}", headers=headers, mode=REVERSE))
    if "proxy-authorization" in headers:  # a password may hold colons
        assert hooks.route(flow) == ("developer", "a")
        return
    assert flow.response is not None
    assert flow.response.status_code == 400
    assert "[A-Za-z0-9_.-]{1,64}" in (flow.response.text or "")
    assert hooks.route(flow) is None


async def test_a_tunnels_user_who_cannot_be_a_session_is_refused_at_once(make: Make) -> None:
    hooks = make()
    user = "Basic " + base64.b64encode(b"a b:x").decode()
    connect = request(f"https://{GOOGLE}/", headers={"proxy-authorization": user}, method="CONNECT")
    await hooks.call("http_connect", connect)
    assert connect.response is not None
    assert connect.response.status_code == 400


# --- Host -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "path", "host"),
    [
        (f"https://{GOOGLE}", PATH, GOOGLE),
        ("http://127.0.0.1:9912", PATH, "127.0.0.1:9912"),
        ("https://gateway.example:8443", "/other", "gateway.example:8443"),
        (f"https://{GOOGLE}", ASSIST, "cloudcode-pa.googleapis.com"),
    ],
)
async def test_upstream_is_told_its_own_host(upstream: str, path: str, host: str, make: Make) -> None:
    hooks = make()
    flow = await hooks.ask(request(f"http://{LOCAL}{path}", mode=f"reverse:{upstream}"))
    assert flow.request.headers["host"] == host


@pytest.mark.parametrize(
    ("host", "options", "status"),
    [
        ("127.0.0.1:8081", {}, None),
        ("localhost", {}, None),
        ("[::1]:8081", {}, None),
        ("evil.example", {}, 403),
        ("my.lan:8081", {"allow_hosts": ["my.lan"]}, None),
    ],
)
async def test_a_reverse_proxys_clients_must_call_it_by_a_name_of_its_own(
    host: str, options: dict[str, list[str]], status: int | None, make: Make
) -> None:
    hooks = make(**options)
    flow = await hooks.ask(request(f"http://{LOCAL}{PATH}", headers={"host": host}, mode=REVERSE))
    assert (flow.response and flow.response.status_code) == status


@pytest.mark.parametrize(
    ("headers", "options", "status"),
    [
        ({"origin": "https://evil.example"}, {}, 403),
        ({"sec-fetch-site": "cross-site"}, {}, 403),
        ({"sec-fetch-site": "same-site"}, {}, 403),
        ({"origin": "http://localhost:3000"}, {}, 403),
        ({"origin": "http://localhost:3000"}, {"allow_origins": ["http://localhost:3000"]}, None),
        ({"origin": "https://app.example"}, {"allow_origins": ["https://app.example"]}, None),
    ],
)
@pytest.mark.parametrize("mode", ["regular", REVERSE])
async def test_web_pages_are_kept_out_in_every_mode(
    mode: str, headers: dict[str, str], options: dict[str, list[str]], status: int | None, make: Make
) -> None:
    hooks = make(**options)
    url = f"https://{GOOGLE}{PATH}" if mode == "regular" else f"http://{LOCAL}{PATH}"
    flow = await hooks.ask(request(url, headers=headers, mode=mode))
    assert (flow.response and flow.response.status_code) == status


# --- redirects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, "/v1beta/models?pageSize=3"])
async def test_a_redirect_takes_all_of_a_hosts_requests_and_no_hook_sees_it(path: str, make: Make) -> None:
    hooks = make(redirect=[f"{GOOGLE}=http://gateway.example:9912/base"])
    flow = await hooks.ask(request(f"https://{GOOGLE}{path}", headers={"x-goog-api-key": "k"}))
    before = flow.request.get_state()
    sent = hooks.destination(flow)
    assert isinstance(sent, http.Request)
    assert (sent.scheme, sent.host, sent.port) == ("http", "gateway.example", 9912)
    assert sent.path == f"/base{path}"
    assert sent.headers["host"] == "gateway.example:9912"
    assert sent.headers["x-goog-api-key"] == "k"
    assert flow.request.get_state() == before
    assert flow.request.url == f"https://{GOOGLE}{path}"
    assert flow.request.headers["host"] == GOOGLE


async def test_other_hosts_are_not_redirected(make: Make) -> None:
    hooks = make(redirect=[f"{GOOGLE}=http://127.0.0.1:9"])
    assert hooks.destination(await hooks.ask(request(f"https://aiplatform.googleapis.com{VERTEX}"))) is None


async def test_a_url_that_other_addons_changed_decides_the_destination(make: Make) -> None:
    hooks = make(redirect=[f"{GOOGLE}=http://127.0.0.1:9"])
    flow = await hooks.ask(request())
    flow.request.host = "elsewhere.example"
    assert hooks.destination(flow) is None
    flow = await hooks.ask(request("https://elsewhere.example/v1"))
    flow.request.host = GOOGLE
    sent = hooks.destination(flow)
    assert isinstance(sent, http.Request)
    assert sent.url == "http://127.0.0.1:9/v1"


# --- the control API ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.9"])
async def test_the_control_apis_address_is_refused(
    host: str, make: Make, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hooks = make(control="127.0.0.1:0", state=str(tmp_path_factory.mktemp("state")))
    assert hooks.lifecycle.runtime is not None
    assert hooks.lifecycle.runtime.control_address is not None
    port = hooks.lifecycle.runtime.control_address[1]
    plain = await hooks.ask(request(f"http://{host}:{port}/v1/sessions", method="GET"))
    tunnel = request(f"https://{host}:{port}/", method="CONNECT")
    await hooks.call("http_connect", tunnel)
    for flow in (plain, tunnel):
        assert flow.response is not None
        assert flow.response.status_code == 403
    other = await hooks.ask(request(f"http://{host}:{port + 1}/v1/sessions", method="GET"))
    assert other.response is None


@pytest.mark.parametrize(("host", "refused"), [("192.0.2.7", True), ("192.0.2.8", False), ("[2001:db8::7]", True)])
async def test_every_address_of_this_machine_is_its_own_if_it_listens_everywhere(
    host: str, refused: bool, make: Make, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Probe(socket.socket):
        """A machine with one address in each family."""

        def bind(self, address: Any) -> None:
            if address[0] not in ("192.0.2.7", "2001:db8::7"):
                raise OSError("not an address of this machine")

    hooks = make(control="0.0.0.0:0", state=str(tmp_path_factory.mktemp("state")))
    assert hooks.lifecycle.runtime is not None
    assert hooks.lifecycle.runtime.control_address is not None
    monkeypatch.setattr(socket, "socket", Probe)
    port = hooks.lifecycle.runtime.control_address[1]
    flow = await hooks.ask(request(f"http://{host}:{port}/v1/sessions", method="GET"))
    assert (flow.response is not None and flow.response.status_code == 403) is refused


@pytest.mark.parametrize(("host", "refused"), [("127.1", True), ("localhost", True), ("203.0.113.1", False)])
async def test_a_connection_to_it_is_refused_under_any_name(
    host: str, refused: bool, make: Make, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hooks = make(control="127.0.0.1:0", state=str(tmp_path_factory.mktemp("state")))
    assert hooks.lifecycle.runtime is not None
    assert hooks.lifecycle.runtime.control_address is not None
    flow: http.HTTPFlow = request()
    flow.server_conn.address = (host, hooks.lifecycle.runtime.control_address[1])
    data = ServerConnectionHookData(flow.server_conn, flow.client_conn)
    await hooks.call("server_connect", data)
    assert bool(data.server.error) is refused
