"""Unusable tools and stores end the start, with status 1 and a message that names the file, and the line or field."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.e2e.processes import Process, environment
from tests.e2e.proxies import MCP_SERVER, command, mcp_file, mode, sets, text_of, user
from tests.e2e.upstreams import Gemini
from tests.ports import free_port

STDIO = {"command": sys.executable, "args": [str(MCP_SERVER), "stdio"]}


def refused(folder: Path, **options: str) -> str:
    """What the start said that came to nothing."""
    words = command(folder, "--mode", f"regular@127.0.0.1:{free_port()}", *sets(control="127.0.0.1:0", **options))
    process = Process("refused", words, environment(folder, TOOLGRAFT_HOME=str(folder / "state")))
    try:
        status = process.wait()
    finally:
        process.stop()
    assert status == 1, process.log
    assert "toolgraft is up" not in process.log
    assert "Traceback" not in process.log
    assert not (folder / "state" / "control.url").exists()
    return process.log


FILES = {
    "import": ("import json\nimport no_such_package\n", "{file}:2: ModuleNotFoundError: No module named"),
    "hints": ('def weather(city):\n    """The weather."""\n', "{file}:1: weather(): parameter `city` has no type hint"),
}


@pytest.mark.parametrize(("source", "message"), FILES.values(), ids=FILES)
def test_a_tools_file_that_is_wrong_is_named_with_its_line(source: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong_tools.py"
    file.write_text(source)
    output = refused(tmp_path, tools=str(file))
    assert message.format(file=file) in output


def test_a_tool_that_an_mcp_server_does_not_have_is_named(tmp_path: Path) -> None:
    output = refused(tmp_path, mcp=str(mcp_file(tmp_path, numbers=STDIO | {"tools": ["multiply"]})))
    assert "MCP server 'numbers': tools.include names 'multiply', but its tools are add, " in output


def test_a_client_that_comes_while_an_mcp_server_starts_waits_for_its_tools(tmp_path: Path, gemini: Gemini) -> None:
    """mitmproxy listens before its addons have said that they are ready."""
    gate = tmp_path / "gate"
    waits = f"until [ -e '{gate}' ]; do sleep 0.02; done; exec '{sys.executable}' '{MCP_SERVER}' stdio"
    config = mcp_file(tmp_path, late={"command": "/bin/sh", "args": ["-c", waits]})
    port = free_port()
    words = command(tmp_path, "--mode", mode(gemini.url, port), *sets(control="off", mcp=str(config), log="mitmproxy"))
    process = Process("late", words, environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state")))
    process.wait_for("listening at")
    url = f"http://127.0.0.1:{port}/v1beta/models/gemini-3-flash-preview:generateContent"
    body = {"contents": [user('call add {"a": 1, "b": 2}')]}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx2.post, url, json=body, headers={"x-goog-api-key": "k"}, timeout=30)
        process.wait_for("client connect")
        assert gemini.requests == []
        gate.touch()
        assert text_of(asked.result(30).json()) == 'add returned {"sum": 3}.'
    assert process.stop() == 0
