"""Two proxies and one Redis: a chat, its calls and their results belong to neither of them."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx2
import openai
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


def client_of(proxy: Proxy, session: str, **options: Any) -> openai.OpenAI:
    headers = {"x-graft-session": session, "x-goog-api-key": "a-secret-key"}
    url = f"{proxy.control.url}/v1"
    return openai.OpenAI(base_url=url, api_key=proxy.control.token, default_headers=headers, **options)


@pytest.mark.parametrize("background", [False, True])
def test_two_requests_of_a_conversation_at_two_proxies_run_their_tools_once_and_one_after_the_other(
    proxies: list[Proxy], gemini: Gemini, tmp_path: Path, background: bool
) -> None:
    """With OpenAI's own client, which repeats a refused request."""
    gate, jotted = tmp_path / "gate", tmp_path / "jotted"

    def release(answer: Any) -> None:
        if answer.status_code == 409:
            Path(f"{gate}.open").touch()

    session = f"locked-{background}"
    http = openai.DefaultHttpxClient(event_hooks={"response": [release]})
    asked: Json = {"model": "gemini-3-flash-preview", "conversation": "chat"}
    with (
        ThreadPoolExecutor(1) as pool,
        client_of(proxies[0], session, timeout=60) as first,
        client_of(proxies[1], session, timeout=60, max_retries=8, http_client=http) as second,
    ):
        words = f"call gate {json.dumps({'file': str(gate)})}"
        begun = pool.submit(lambda: first.responses.create(input=words, background=background, **asked))
        try:
            until(gate.exists, "the tool runs")
            words = f"call jot {json.dumps({'file': str(jotted), 'word': 'x'})}"
            answer = second.responses.create(input=words, **asked)
        finally:
            Path(f"{gate}.open").touch()
        response = begun.result(30)
        until(lambda: first.responses.retrieve(response.id).status == "completed", "the first is answered")
        third = first.responses.create(input="repeat the results", **asked)
    assert "jot returned" in answer.output_text
    assert (gate.read_text().split(), jotted.read_text().split()) == (["begun", "ended"], ["x"])
    assert third.output_text.index("gate returned") < third.output_text.index("jot returned")
    assert gemini.errors == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/gemini"])
@pytest.mark.parametrize("end", ["hangs up", "killed"])
def test_a_conversation_is_free_at_the_other_proxy_when_its_request_has_no_client_or_no_proxy(
    proxies: list[Proxy], strict: Gemini, gemini: Gemini, tmp_path: Path, redis: int, path: str, end: str
) -> None:
    _, two = proxies
    store = f"redis://127.0.0.1:{redis}/1?prefix=e2e"
    environ = {"TOOLGRAFT_REDIS_PASSWORD": "s3cr3t"}
    session = f"freed-{end.split()[0]}-{path.rpartition('/')[2]}"
    gate = tmp_path / "gate"
    one = Proxy(tmp_path, strict.url, environ=environ, store=store, tools=str(TOOLS), tool_timeout="300")

    def post(proxy: Proxy, words: str, timeout: float = 30) -> httpx2.Response:
        asked = {"model": "gemini-3-flash-preview", "conversation": "chat", "input": words}
        headers = {"x-graft-session": session, "x-goog-api-key": "a-secret-key"}
        return proxy.control.http.post(path, json=asked, headers=headers, timeout=timeout)

    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(post, one, f"call gate {json.dumps({'file': str(gate)})}", 3)
            until(gate.exists, "the tool runs")
            refused = post(two, "hi")
            assert (refused.status_code, "another request" in refused.text) == (409, True)
            if end == "killed":
                os.kill(one.process.pid, signal.SIGKILL)
                one.process.wait()
            assert isinstance(asked.exception(30), httpx2.TransportError)
        if end == "killed":
            one.control.close()
            one.start()
        until(lambda: post(two, "hi").status_code == 200, "the conversation is free")
        assert gate.read_text().split() == ["begun"]
        assert gemini.errors == []
    finally:
        one.stop()


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


def test_a_retry_after_a_kill_waits_at_another_proxy_and_runs_no_tool_twice(
    tmp_path: Path, proxies: list[Proxy], strict: Gemini, gemini: Gemini, redis: int
) -> None:
    gate, two = tmp_path / "gate", proxies[1]
    environ = {"TOOLGRAFT_REDIS_PASSWORD": "s3cr3t"}
    store = f"redis://127.0.0.1:{redis}/1?prefix=e2e"
    one = Proxy(tmp_path, strict.url, environ=environ, store=store, tools=str(TOOLS), tool_timeout="300")
    try:
        history = [user(f"call gate {json.dumps({'file': str(gate)})}")]
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(ask, one, "failover", history, stream=False)
            until(gate.exists, "the tool runs")
            os.kill(one.process.pid, signal.SIGKILL)
            one.process.wait()
            assert isinstance(asked.exception(30), httpx2.TransportError)
            retry = pool.submit(ask, two, "failover", history, stream=False)
            wait({retry}, timeout=2)  # long enough to run the tool
            assert (retry.done(), gate.read_text()) == (False, "begun\n")
            one.control.close()
            one.start()  # which ends the lease of its predecessor
            assert "may have run" in retry.result(30)
        assert gate.read_text() == "begun\n"
        assert gemini.errors == []
    finally:
        Path(f"{gate}.open").touch()
        one.stop()


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
