"""Two proxies and one Redis: a chat, its calls and their results belong to neither of them."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import MODEL_PATH, TOOLS, Proxy, model, sse, text_of, user, weather
from tests.e2e.upstreams import Gemini
from tests.ports import free_port
from tests.store import servers

Json = dict[str, Any]


@pytest.fixture(scope="module")
def redis() -> Iterator[int]:
    with servers.running(servers.program_under_test(), "--requirepass", "s3cr3t") as port:
        yield port


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory, strict: Gemini, redis: int) -> Iterator[list[Proxy]]:
    found = []
    try:
        for name in ("one", "two"):
            folder: Path = tmp_path_factory.mktemp(name)
            environ = {"TOOLGRAFT_REDIS_PASSWORD": "s3cr3t"}
            store = f"redis://127.0.0.1:{redis}/1?prefix=e2e"
            found.append(Proxy(folder, strict.url, environ=environ, store=store, tools=str(TOOLS)))
        yield found
    finally:
        for proxy in found:
            proxy.stop()


def ask(proxy: Proxy, session: str, contents: list[Json], *, stream: bool) -> str:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    url = f"{proxy.url}/@{session}{MODEL_PATH}:{method}"
    got = httpx2.post(url, json={"contents": contents}, headers={"x-goog-api-key": "a-secret-key"}, timeout=30)
    assert got.status_code == 200, got.text
    return text_of(sse(got.text) if stream else got.json())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_placeholder_is_answered_and_restored_at_the_other_proxy(
    proxies: list[Proxy], gemini: Gemini, stream: bool
) -> None:
    one, two = proxies
    name = f"placeholder-{stream}"
    one.control.session(name).tools()
    history = [user("weather in Paris")]
    given = ask(two, name, history, stream=stream)
    assert given.startswith("Tool call completed: get_weather [turn_")
    one.control.session(name).answer(get_weather=weather)
    history += [model(given), user("repeat the results")]
    for proxy in (two, one):
        assert ask(proxy, name, history, stream=stream) == 'get_weather returned {"city": "Paris", "celsius": 5}.'
    assert gemini.errors == []
    assert [call["status"] for call in two.control.session(name).calls()] == ["done"]


def test_a_request_at_one_proxy_waits_for_a_result_posted_at_the_other(proxies: list[Proxy], gemini: Gemini) -> None:
    one, two = proxies
    session = one.control.session("waiting")
    session.tools()
    session.policy(on_pending="wait")
    history = [user("weather in Oslo")]
    history += [model(ask(one, "waiting", history, stream=True)), user("repeat the results")]
    hits = one.control.metric("toolgraft_ledger_hits_total")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, one, "waiting", history, stream=True)
        until(lambda: one.control.metric("toolgraft_ledger_hits_total") > hits, "the request is looked up")
        two.control.session("waiting").answer(get_weather=weather)
        assert waiting.result(30) == 'get_weather returned {"city": "Oslo", "celsius": 4}.'
    assert gemini.errors == []


def test_a_loop_streams_and_its_chat_goes_on_at_the_other_proxy_after_a_restart(
    proxies: list[Proxy], gemini: Gemini
) -> None:
    one, two = proxies
    history = [user('call weather {"city": "Bern"}')]
    answer = ask(one, "looped", history, stream=True)
    assert answer == 'weather returned {"city": "Bern", "celsius": 4}.'
    one.restart()
    history += [model(answer), user("repeat the results")]
    for proxy in (two, one):
        gemini.forget()
        assert ask(proxy, "looped", history, stream=True) == answer
        parts = [part for content in gemini.last["body"]["contents"] for part in content["parts"]]
        assert any("functionCall" in part for part in parts), "the true turn"
    assert gemini.errors == []
    assert "s3cr3t" not in one.log + two.log


HANGS = '''
import asyncio


async def hangs(file: str) -> str:
    """Append a line to the file, and never return."""
    with open(file, "a") as begun:
        begun.write("begun\\n")
    await asyncio.sleep(600)
    return ""
'''
LEASE = 60.0
"""Seconds after which the calls of a proxy are lost that nobody starts again."""


def test_a_retry_after_a_kill_goes_on_at_once_at_the_successor_and_runs_no_tool_twice(
    tmp_path: Path, strict: Gemini, gemini: Gemini, redis: int
) -> None:
    tools, file = tmp_path / "tools.py", tmp_path / "begun"
    tools.write_text(HANGS)
    environ = {"TOOLGRAFT_REDIS_PASSWORD": "s3cr3t"}
    store = f"redis://127.0.0.1:{redis}/1?prefix=killed"
    proxy = Proxy(tmp_path, strict.url, environ=environ, store=store, tools=str(tools), tool_timeout="300")
    try:
        history = [user(f"call hangs {json.dumps({'file': str(file)})}")]
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, proxy, "killed", history, stream=False)
            until(file.exists, "the tool runs")
            os.kill(proxy.process.pid, signal.SIGKILL)
            proxy.process.wait()
            assert isinstance(asked.exception(30), httpx2.TransportError)
        proxy.control.close()
        proxy.start()
        began = time.monotonic()
        assert "may have run" in ask(proxy, "killed", history, stream=False)
        assert time.monotonic() - began < LEASE / 4
        assert file.read_text() == "begun\n"
        assert [call["status"] for call in proxy.control.session("killed").calls()] == ["expired"]
        assert gemini.errors == []
    finally:
        proxy.stop()
    assert not (proxy.state / "proxy.id").exists(), "who ends leaves nothing to settle"


def test_a_store_that_is_gone_is_said_and_the_proxy_serves_again_once_it_is_back(
    tmp_path: Path, strict: Gemini, gemini: Gemini
) -> None:
    port = free_port()
    with servers.running(servers.program_under_test(), port=port):
        proxy = Proxy(tmp_path, strict.url, store=f"redis://127.0.0.1:{port}")
        proxy.control.session("one").tools()
    try:
        url = f"{proxy.url}/@one{MODEL_PATH}:generateContent"
        body = {"contents": [user("hi")]}
        assert httpx2.post(url, json=body, headers={"x-goog-api-key": "k"}, timeout=30).status_code == 503
        assert proxy.control.http.get("/healthz").status_code == 503
        with servers.running(servers.program_under_test(), port=port):
            until(lambda: proxy.control.http.get("/healthz").status_code == 200, "the store is back")
            assert httpx2.post(url, json=body, headers={"x-goog-api-key": "k"}, timeout=30).status_code == 200
    finally:
        proxy.stop()
