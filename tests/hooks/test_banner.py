"""What the user reads when the proxy is up."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from mitmproxy.proxy.mode_specs import ProxyMode

from addon.hooks.runtime import Runtime
from addon.hooks.start_message import addresses, banner
from addon.hooks.upstream_flows import MitmUpstreamFactory
from addon.tools.base import ServerState, ToolSource
from store.models import Executor, Session, ToolRules, Toolset
from tests.hooks.harness import Hooks


def server(mode: str, *listening: tuple[str, int]) -> SimpleNamespace:
    return SimpleNamespace(mode=ProxyMode.parse(mode), listen_addrs=listening)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://127.0.0.1:8080"),
        ("::1", "http://[::1]:8080"),
    ],
)
def test_addresses_are_those_a_client_on_this_machine_uses(host: str, url: str) -> None:
    assert addresses([server("regular", (host, 8080))]) == {"regular": [url], "reverse": []}


def test_each_kind_of_proxy_has_its_own_and_others_have_none() -> None:
    servers = [
        server("reverse:https://h", ("127.0.0.1", 1)),
        server("socks5", ("127.0.0.1", 2)),
        server("reverse:https://i", ("127.0.0.1", 3), ("::1", 3)),
        server("regular"),
    ]
    found = addresses(servers)
    assert found == {"regular": [], "reverse": ["http://127.0.0.1:1", "http://127.0.0.1:3"]}


async def test_it_says_how_a_client_is_pointed_at_each_port(hooks: Hooks) -> None:
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    listening = {"regular": ["http://127.0.0.1:1"], "reverse": ["http://127.0.0.1:2"]}
    text = "\n".join(banner(listening, runtime, "/home/u/conf/mitmproxy-ca-cert.pem"))
    assert "export GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:2" in text
    assert "export HTTPS_PROXY=http://127.0.0.1:1 SSL_CERT_FILE=/home/u/conf/mitmproxy-ca-cert.pem" in text
    assert "session default, store memory://" in text
    assert "control API" not in text
    assert "front doors" not in text


@pytest.mark.parametrize("environ", [{}, {"GEMINI_API_KEY": " "}, {"GEMINI_API_KEY": "k"}, {"GOOGLE_API_KEY": "k"}])
async def test_it_says_who_has_to_send_a_key(hooks: Hooks, environ: dict[str, str]) -> None:
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    settings = runtime.settings.model_copy(update={"control": ("127.0.0.1", 0), "token": "off"})
    started = Runtime.start(settings, hooks.part(MitmUpstreamFactory), environ)
    text = "\n".join(banner({"regular": [], "reverse": []}, started, ""))
    assert ("no GEMINI_API_KEY is set: callers send x-goog-api-key" in text) is ("k" not in environ.values())
    await started.stop()


async def test_the_control_api_s_port_is_that_of_the_front_doors_too(hooks: Hooks) -> None:
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    runtime.control_url = "http://127.0.0.1:3"
    text = "\n".join(banner({"regular": [], "reverse": []}, runtime, ""))
    assert "control API at http://127.0.0.1:3" in text
    assert "http://127.0.0.1:3/v1/responses" in text
    assert "http://127.0.0.1:3/v1/gemini" in text


@pytest.mark.parametrize("token", ["off", "a-token"])
async def test_it_has_a_link_that_signs_in_to_the_console_once(hooks: Hooks, token: str) -> None:
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    settings = runtime.settings.model_copy(update={"control": ("127.0.0.1", 0), "token": token})
    started = Runtime.start(settings, hooks.part(MitmUpstreamFactory), {})
    (line,) = [line for line in banner({"regular": [], "reverse": []}, started, "") if "console" in line]
    url, _, rest = line.removeprefix("  console at ").partition("#")
    assert url == f"{started.control_url}/console"
    assert started.control is not None
    if token == "off":
        assert rest == ""
    else:
        sessions = started.control.api.page_sessions
        assert sessions is not None
        code = rest.partition(" ")[0]
        assert sessions.use_link(code)
        assert not sessions.use_link(code)
    await started.stop()


def executed(*names: str) -> dict[str, Any]:
    rules = SimpleNamespace(approval=False)
    return {name: SimpleNamespace(declaration={"name": name}, rules=rules) for name in names}


async def test_it_names_the_tools_of_every_session_and_the_servers_that_are_up_or_down(hooks: Hooks) -> None:
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    listening: dict[str, list[str]] = {"regular": [], "reverse": []}
    assert not any("tools of every session" in line for line in banner(listening, runtime, ""))
    states = [ServerState("files", True, 3), ServerState("web", False, 0, "HTTP 500"), ServerState("late", False, 0)]
    source = SimpleNamespace(server_states=lambda: states, name_of=lambda name: "MCP" if name == "x" else "my.py")
    runtime.executors.source = cast(ToolSource, source)
    runtime.executors.tools = cast(Any, executed(*(f"t{n}" for n in range(22)), "x"))
    lines = list(banner(listening, runtime, ""))
    named = ", ".join(f"t{n}" for n in range(20))
    assert lines[1:7] == [
        "  tools of every session:",
        f"    my.py, run by the proxy: {named} and 2 more",
        "    MCP, run by the proxy: x",
        "  MCP server files is up, 3 tools",
        "  MCP server web is down: HTTP 500",
        "  MCP server late is down: it is not started yet",
    ]


async def test_it_lists_the_sessions_with_tools_and_who_runs_each(hooks: Hooks) -> None:
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    rules = {
        "pay": ToolRules(executor=Executor(type="worker"), approval=True),
        "fetch": ToolRules(executor=Executor(type="http", url="https://user:secret@tools.example/x?key=secret")),
    }
    declarations: list[dict[str, Any]] = [{"name": name} for name in ("ask", "pay", "fetch", "a\x1b[2Jb")]
    builtins: list[dict[str, Any]] = [{"googleSearch": {}}]
    toolset = Toolset(declarations=declarations, builtins=builtins, rules=rules)
    sessions = [
        Session(name=name, toolset=found, created_at=0, updated_at=0)
        for name, found in [("one", toolset), ("empty", Toolset()), ("policy", None)]
    ]
    lines = list(banner({"regular": [], "reverse": []}, runtime, "", sessions))
    assert lines[1:7] == [
        "  session one:",
        "    answered by hand: ask, a\\x1b[2Jb",
        "    run by workers, after an approval: pay",
        "    run by tools.example: fetch",
        "    run by Gemini: googleSearch",
        "  session empty: no tools, and clients keep none",
    ]
    assert lines[-1] == "  session default, store memory://"
    many = [sessions[0].model_copy(update={"name": f"s{n}"}) for n in range(12)]
    assert "  and 2 more sessions with tools: `./run_proxy.sh sessions`" in banner(
        {"regular": [], "reverse": []}, runtime, "", many
    )
