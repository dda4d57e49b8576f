"""Files that change while the proxy serves: no request is lost, and what is wrong is reported and left."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.e2e.processes import Process, environment, until
from tests.e2e.proxies import MCP_SERVER, Proxy, ask, new_session
from tests.e2e.upstreams import Gemini

SLOW = '''
import asyncio
from pathlib import Path


async def gate(file: str) -> str:
    """Write into the file, and return {result!r} when there is a file of that name with `.open` behind it."""
    Path(file).write_text("begun")
    while not Path(f"{{file}}.open").exists():
        await asyncio.sleep(0.02)
    return {result!r}


async def quick() -> str:
    """Return at once."""
    return {result!r}
'''


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "tools.py"
    path.write_text(SLOW.format(result="first"))
    return path


def test_a_call_in_progress_ends_with_the_old_code_and_the_next_one_runs_the_new(
    start: Callable[..., Proxy], tools: Path, tmp_path: Path, gemini: Gemini
) -> None:
    proxy = start(gemini.url, tools=str(tools))
    session = new_session(proxy, tools=False)
    file = tmp_path / "gate"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, session, f"call gate {json.dumps({'file': str(file)})}")
        until(file.exists, "the call has begun")
        mark = proxy.process.mark()
        tools.write_text(SLOW.format(result="second"))
        proxy.process.wait_for(f"changed, and used from now on: {tools}", after=mark)
        assert "second" in ask(proxy, session, "call quick {}")
        Path(f"{file}.open").touch()
        assert "first" in asked.result(60)
    assert gemini.errors == []
    tools.write_text("\ndef broken(:\n")
    proxy.process.wait_for(rf"{tools}:2: SyntaxError: .*\. Nothing of the change is used", after=mark)
    assert "second" in ask(proxy, session, "call quick {}")


def test_sighup_reads_the_files_again_also_where_changes_are_left_alone(
    start: Callable[..., Proxy], tools: Path, gemini: Gemini
) -> None:
    proxy = start(gemini.url, tools=str(tools), reload="off")
    session = new_session(proxy, tools=False)
    for result in ("second", "third"):
        tools.write_text(SLOW.format(result=result))
        mark = proxy.process.mark()
        os.kill(proxy.process.pid, signal.SIGHUP)
        proxy.process.wait_for(f"changed, and used from now on: {tools}", after=mark)
        assert result in ask(proxy, session, "call quick {}")
    tools.write_text("def broken(:\n")
    for _ in range(2):  # who asks twice is answered twice
        mark = proxy.process.mark()
        os.kill(proxy.process.pid, signal.SIGHUP)
        proxy.process.wait_for(r"tools\.py:1: SyntaxError: .* Nothing of the change is used", after=mark)
    assert "third" in ask(proxy, session, "call quick {}")
    assert proxy.stop() == 0


def test_sighup_leaves_a_proxy_without_files_as_it_is(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url)
    os.kill(proxy.process.pid, signal.SIGHUP)
    proxy.process.wait_for("SIGHUP: there is no file to read again")
    assert ask(proxy, new_session(proxy), "hi")
    assert proxy.stop() == 0


def test_no_request_is_lost_while_tools_and_servers_change(
    start: Callable[..., Proxy], tools: Path, tmp_path: Path, gemini: Gemini
) -> None:
    tools.write_text(SLOW.format(result="number none"))
    servers = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": [str(MCP_SERVER), "stdio"]}
    servers.write_text(json.dumps({"mcpServers": {"s": server}}))
    proxy = start(gemini.url, tools=str(tools), mcp=str(servers))
    session = new_session(proxy, tools=False)
    ended = threading.Event()

    def keep_asking(text: str, expected: str) -> int:
        count = 0
        while not ended.is_set() or not count:
            answer = ask(proxy, session, text)
            assert expected in answer
            assert "error" not in answer, answer
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        asking = [
            pool.submit(keep_asking, "call quick {}", "number"),
            pool.submit(keep_asking, 'call add {"a": 2, "b": 3}', "5"),
        ]
        try:
            for number in range(3):
                mark = proxy.process.mark()
                tools.write_text(SLOW.format(result=f"number {number}"))
                proxy.process.wait_for(f"used from now on: {tools}", after=mark)
                mark = proxy.process.mark()
                servers.write_text(json.dumps({"mcpServers": {"s": server | {"env": {"NUMBER": str(number)}}}}))
                proxy.process.wait_for("used from now on: MCP server s", after=mark)
        finally:
            ended.set()
        assert all(one.result(60) for one in asking)
    assert gemini.errors == []
    assert "Traceback" not in proxy.log


def test_a_file_of_the_working_folder_holds_once_its_new_contents_are_trusted(tmp_path: Path, gemini: Gemini) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    config = folder / "toolgraft.toml"
    settings = '[options]\ncontrol = "127.0.0.1:0"\ndrain_timeout = 0\nmax_rounds = {rounds}\n'
    config.write_text(f"modes = ['regular@127.0.0.1:0']\n{settings.format(rounds=3)}")
    environ = environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state"))
    addon = f"import os; os.chdir({str(folder)!r}); from addon.__main__ import main; main()"

    def run(*arguments: str) -> Process:
        return Process("mitmdump", [sys.executable, "-c", addon, *arguments], environ)

    assert run("trust").wait() == 0
    proxy = run("serve", "--set", f"confdir={tmp_path / 'conf'}")
    try:
        proxy.wait_for(f"settings of {config}")
        proxy.wait_for(r"session \S+, store ")
        config.write_text(f"modes = ['regular@127.0.0.1:0']\n{settings.format(rounds=4)}")
        proxy.wait_for("it has changed since it was trusted.* Nothing of the change is used")
        assert "holds from now on" not in proxy.log
        assert run("trust").wait() == 0
        proxy.wait_for(f"{config} has changed, and holds from now on: max_rounds")
        url, token = ((tmp_path / "state" / name).read_text().strip() for name in ("control.url", "token"))
        got = httpx2.get(f"{url}/v1/sessions/any", headers={"authorization": f"Bearer {token}"}, timeout=60)
        assert got.json()["max_rounds"] == 4
    finally:
        proxy.stop()
