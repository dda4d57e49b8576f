"""Web pages of others cannot use the proxy's ports: any path, any method, WebSockets, any spelling."""

from collections.abc import Callable

import pytest

from tests.hooks.conftest import make as make
from tests.hooks.harness import GOOGLE, LOCAL, PATH, Hooks, request

Make = Callable[..., Hooks]

REVERSE = ["reverse:http://127.0.0.1:9", f"reverse:https://{GOOGLE}"]
LIVE = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-key": "a", "sec-websocket-version": "13"}
FOREIGN = [
    {"host": "evil.example"},
    {"host": "evil.example:8081"},
    {"host": ""},
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://127.0.0.1:9999", "sec-fetch-site": "same-site"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize("mode", REVERSE)
@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_reverse_port_serves_no_foreign_page_whatever_it_asks_for(
    headers: dict[str, str], mode: str, make: Make
) -> None:
    hooks = make()
    for method, path in (
        ("POST", PATH),
        ("GET", "/"),
        ("OPTIONS", PATH),
        ("DELETE", "/api/agents/1"),
        ("POST", "/@bob/other"),
        ("POST", "/x/.." + PATH),
        ("POST", PATH + ";x"),
        ("POST", PATH.upper()),
        ("GET", LIVE),
        ("GET", "/socket"),
    ):
        given = (UPGRADE if path in (LIVE, "/socket") else {}) | headers
        flow = await hooks.ask(request(f"http://{LOCAL}{path}", headers=given, mode=mode, method=method))
        assert flow.response is not None, (method, path)
        assert flow.response.status_code == 403, (method, path)
        assert "access-control-allow-origin" not in flow.response.headers, (method, path)


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ({}, {}),
        ({"host": "localhost"}, {}),
        ({"host": "localhost:8081", "origin": "http://localhost:8081", "sec-fetch-site": "same-origin"}, {}),
        ({"host": "gate.lan", "origin": "https://gate.lan"}, {"allow_hosts": ["gate.lan"]}),
        (
            {"origin": "https://app.example", "sec-fetch-site": "cross-site"},
            {"allow_origins": ["https://app.example"]},
        ),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/ui/index.html"])
async def test_a_reverse_port_serves_programs_its_own_pages_and_named_ones(
    path: str, headers: dict[str, str], options: dict[str, list[str]], make: Make
) -> None:
    flow = await make(**options).ask(request(f"http://{LOCAL}{path}", headers=headers, mode=REVERSE[0], method="GET"))
    assert flow.response is None


@pytest.mark.parametrize("headers", [given for given in FOREIGN if "host" not in given])
async def test_the_regular_port_serves_no_foreign_page_a_surface_however_its_path_is_spelt(
    headers: dict[str, str], make: Make
) -> None:
    hooks = make()
    for method, path in (
        ("POST", PATH),
        ("OPTIONS", PATH),
        ("GET", PATH),
        ("POST", "/x/.." + PATH),
        ("POST", "/x/%2e%2e" + PATH),
        ("POST", PATH + ";x"),
        ("POST", PATH.upper()),
        ("POST", PATH.replace("/models", "\\models")),
        ("GET", LIVE),
        ("GET", LIVE + "/"),
    ):
        flow = request(headers=(UPGRADE if path.startswith(LIVE) else {}) | headers, method=method)
        flow.request.path = path
        await hooks.ask(flow)
        assert flow.response is not None, (method, path)
        assert flow.response.status_code == 403, (method, path)


@pytest.mark.parametrize("url", ["https://example.com/", f"https://{GOOGLE}/v1beta/files"])
async def test_a_page_that_is_only_browsed_through_the_regular_port_is_not_looked_at(url: str, make: Make) -> None:
    headers = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
    flow = await make().ask(request(url, headers=headers))
    assert flow.response is None
