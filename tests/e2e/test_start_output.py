"""What a start shows: servers that come up, what failed, and the tools of all sessions; on a terminal and elsewhere."""

import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.processes import environment, live, until
from tests.e2e.proxies import MCP_SERVER, TOOLS, Proxy, command, sets
from tests.e2e.terminals import Terminal
from tests.e2e.upstreams import Gemini
from tests.ports import free_port

_SPINNER = re.compile(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] ([^\r\x1b]*)")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The slow server comes up once this file exists."""
    return tmp_path / "gate"


@pytest.fixture
def servers(tmp_path: Path, gate: Path) -> Path:
    """A configuration of a server that is slow and one that ends at once."""
    slow = tmp_path / "slow.sh"
    wait = f"while ! test -e {gate}; do sleep 0.05; done"
    slow.write_text(f"#!/bin/sh\n{wait}\nexec {sys.executable} {MCP_SERVER} stdio\n")
    slow.chmod(0o755)
    path = tmp_path / "mcp.json"
    entries = {"slow": {"command": str(slow), "prefix": "slow_"}, "bad": {"command": "false"}}
    path.write_text(json.dumps({"mcpServers": entries}))
    return path


def lines_of(screen: str) -> list[str]:
    """The lines that stay on the screen."""
    return [line.rpartition("\x1b[K")[2].rstrip("\r") for line in screen.split("\n")]


@pytest.mark.parametrize("columns", [160, 50])
def test_on_a_terminal_a_line_turns_while_servers_come_up_and_then_goes(
    tmp_path: Path, servers: Path, gate: Path, columns: int
) -> None:
    mode = ("--mode", f"reverse:http://127.0.0.1:9@127.0.0.1:{free_port()}")
    line = command(tmp_path, *mode, *sets(control="127.0.0.1:0", mcp=str(servers), tools=str(TOOLS)))
    environ = environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state"), TERM="xterm-256color")
    with Terminal(line, tmp_path, environ, columns) as terminal:
        terminal.wait_for("coming up")
        terminal.wait_for("MCP server 'bad' is not up")
        terminal.wait_for("⠏")
        gate.touch()
        terminal.wait_for("session default, store")
        raw = terminal.raw
    turning = _SPINNER.findall(raw)
    assert turning[0].startswith("2 MCP servers are coming up, 0 s: slow, bad"[: columns - 3])
    assert all(len(one) <= columns - 3 for one in turning)
    text = "\n".join(lines_of(raw))
    assert "coming up" not in text
    assert f"    {TOOLS}, run by the proxy: weather, hour" in text
    assert "    MCP server 'slow', run by the proxy: slow_add" in text
    assert "  MCP server slow is up, 7 tools" in text
    assert "  MCP server bad is down: " in text


def test_elsewhere_it_is_one_line(start: Callable[..., Proxy], servers: Path, gate: Path, gemini: Gemini) -> None:
    before = len(live)

    def open_gate() -> None:
        until(lambda: len(live) > before, "the proxy runs")
        live[before].wait_for("2 MCP servers are coming up: slow, bad")
        gate.touch()

    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(open_gate)
        proxy = start(gemini.url, mcp=str(servers))
        opened.result(60)
    assert "\x1b" not in proxy.log
    assert "⠋" not in proxy.log
    assert proxy.log.count("coming up") == 1
    assert "MCP server slow is up, 7 tools" in proxy.log


def test_a_start_lists_the_sessions_that_the_store_has(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url)
    proxy.control.session("mine").tools()
    proxy.restart()
    place = next(at for at, line in enumerate(proxy.process.lines) if line.endswith("  session mine:"))
    assert proxy.process.lines[place + 1].endswith("    answered by hand: get_weather, get_time")
