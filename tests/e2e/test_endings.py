"""The end of the process while tools run that resist their cancellation."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tests.e2e.processes import ROOT, environment, until
from tests.e2e.proxies import MCP_STDIO, MODEL_PATH, Json, Proxy, ask, command, mcp_file, mode, new_session, sets, user
from tests.e2e.upstreams import Canned, Gemini, chunked
from tests.ports import free_port

STUBBORN = ROOT / "tests" / "e2e" / "tools" / "stubborn.py"
KEY = {"x-goog-api-key": "a-secret-key"}


def asked(proxy: Proxy, words: str) -> socket.socket:
    """A client that has asked, and waits."""
    body = json.dumps({"contents": [user(words)]}).encode()
    head = [
        f"POST {MODEL_PATH}:streamGenerateContent?alt=sse HTTP/1.1",
        f"Host: {proxy.url.removeprefix('http://')}",
        "x-goog-api-key: a-secret-key",
        f"Content-Length: {len(body)}",
    ]
    host, port = proxy.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.sendall("\r\n".join([*head, "", ""]).encode() + body)
    return client


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("number", "tools"),
    [
        (signal.SIGTERM, ["swallow", "sleep", "local_hang"]),
        (signal.SIGINT, ["swallow"]),
        (signal.SIGINT, ["pool"]),
        (signal.SIGTERM, ["leave", "own_pool"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_signal_ends_the_process_whatever_its_tools_do(
    tools: list[str], number: signal.Signals, gemini: Gemini, start: Callable[..., Proxy], tmp_path: Path
) -> None:
    proxy = start(gemini.url, tools=str(STUBBORN), mcp=str(mcp_file(tmp_path, local=MCP_STDIO)))
    session = proxy.control.session("default")
    ask(proxy, session, "call local_about {}")
    server = session.calls()[0]["result"]["pid"]
    files = [tmp_path / tool for tool in tools]
    words = " and ".join(f'call {file.name} {{"file": "{file}"}}' for file in files)
    with closing(asked(proxy, words)):
        for file in files:
            until(file.exists, f"{file.name} has started")
        os.kill(proxy.process.pid, number)
        assert proxy.process.wait() == 0, proxy.log
    assert not is_alive(server)
    assert not (proxy.state / "control.url").exists()
    assert "Traceback" not in proxy.log


def test_a_terminal_that_hangs_up_ends_the_process(tmp_path: Path, gemini: Gemini) -> None:
    """Its SIGHUP asks for no reload."""
    takes_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    line = [*command(tmp_path, "--mode", mode(gemini.url, free_port())), *sets(control="127.0.0.1:0")]
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", takes_terminal, *map(str, line)],
        env=environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state")),
        stdin=end,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        os.close(end)
        try:
            assert process.stdout is not None
            assert any("session default, store" in line for line in process.stdout)
            os.close(terminal)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert not (tmp_path / "state" / "control.url").exists()


def test_long_polls_of_the_control_api_are_answered_and_do_not_delay_the_end(
    gemini: Gemini, start: Callable[..., Proxy]
) -> None:
    proxy = start(gemini.url, drain_timeout="60")
    http = proxy.control.http
    before = proxy.control.metric("toolgraft_tasks")
    polls: list[Callable[[], httpx2.Response]] = [
        lambda: http.get("/v1/calls", params={"wait": 60}),
        lambda: http.post("/v1/calls/claim", json={"session": "default", "names": ["add"], "wait": 60}),
        lambda: http.get("/v1/events"),  # returns once the stream has ended as it should
    ]
    with ThreadPoolExecutor(len(polls)) as pool:
        answers = [pool.submit(poll) for poll in polls]
        until(lambda: proxy.control.metric("toolgraft_tasks") >= before + len(polls), "all of them wait")
        os.kill(proxy.process.pid, signal.SIGTERM)
        assert proxy.process.wait(30) == 0, "half of what the polls would wait for"
        calls, claim, events = (answer.result(10) for answer in answers)
    assert (calls.status_code, calls.json()["items"]) == (200, [])
    assert claim.status_code == 204
    assert events.status_code == 200
    assert "Traceback" not in proxy.log


def test_a_tool_that_swallows_its_cancellation_has_its_time_and_no_more(
    gemini: Gemini, start: Callable[..., Proxy], tmp_path: Path
) -> None:
    proxy = start(gemini.url, tools=str(STUBBORN), tool_timeout="0.3")
    session = new_session(proxy, tools=False)
    for stream in (True, False):
        answer = ask(proxy, session, f'call swallow {{"file": "{tmp_path / "started"}"}}', stream=stream)
        assert answer == 'swallow returned {"error": "swallow took longer than 0.3 s"}.'
    assert [call["status"] for call in session.calls()] == ["failed", "failed"]
    assert proxy.stop() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_wait_for_the_model_are_told_that_the_process_ends(
    stream: bool, canned: Canned, start: Callable[..., Proxy]
) -> None:
    """A loop and both front doors."""
    canned.says = [threading.Event()]
    headers = {"x-goog-api-key": "a-secret-key"}
    proxy = start(canned.url, tools=str(STUBBORN), upstream=canned.url)
    asked = {"model": "gemini-3-flash", "input": "Hi", "stream": stream}
    operation = "streamGenerateContent?alt=sse" if stream else "generateContent"
    asks: list[Callable[[], httpx2.Response]] = [
        lambda: httpx2.post(
            f"{proxy.url}{MODEL_PATH}:{operation}", json={"contents": [user("Hi")]}, headers=headers, timeout=20
        ),
        lambda: proxy.control.http.post("/v1/gemini", json=asked, headers=headers),
        lambda: proxy.control.http.post("/v1/responses", json=asked, headers=headers),
    ]
    with ThreadPoolExecutor(len(asks)) as pool:
        answers = [pool.submit(ask) for ask in asks]
        until(lambda: len(canned.heard) == len(asks), "all of them wait")
        os.kill(proxy.process.pid, signal.SIGTERM)
        replies = [answer.result() for answer in answers]
    assert proxy.process.wait() == 0, proxy.log
    assert [answer.status_code for answer in replies] == [503, 503, 200 if stream else 503]
    assert [answer.json()["error"]["status"] for answer in replies[:2]] == ["UNAVAILABLE"] * 2
    assert "server_error" in replies[2].text, "a stream of OpenAI's begins at once"


@pytest.mark.parametrize("stream", [False, True])
def test_requests_in_flight_finish_before_the_end(stream: bool, canned: Canned, start: Callable[..., Proxy]) -> None:
    """A session without tools, a loop and both front doors. Nobody new is served meanwhile."""
    go = threading.Event()
    document = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Done."}]}, "finishReason": "STOP"}]}
    whole = json.dumps(document).encode()
    kind, whole = ("text/event-stream", b"data: " + whole + b"\r\n\r\n") if stream else ("application/json", whole)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(whole)}\r\nConnection: close\r\n\r\n"
    canned.says = [go, head.encode(), whole]
    headers = {"x-goog-api-key": "a-secret-key"}
    proxy = start(canned.url, tools=str(STUBBORN), upstream=canned.url, drain_timeout="20")
    asked = {"model": "gemini-3-flash", "input": "Hi", "stream": stream}
    path = f"{MODEL_PATH}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"
    body = {"contents": [user("Hi")]}
    asks: list[Callable[[], httpx2.Response]] = [
        lambda: httpx2.post(f"{proxy.url}/@empty{path}", json=body, headers=headers, timeout=20),
        lambda: httpx2.post(f"{proxy.url}{path}", json=body, headers=headers, timeout=20),
        lambda: proxy.control.http.post("/v1/gemini", json=asked, headers=headers),
        lambda: proxy.control.http.post("/v1/responses", json=asked, headers=headers),
    ]
    with ThreadPoolExecutor(len(asks)) as pool:
        answers = [pool.submit(ask) for ask in asks]
        until(lambda: len(canned.heard) == len(asks), "all of them wait")
        os.kill(proxy.process.pid, signal.SIGTERM)
        proxy.process.wait_for("4 requests have 20 s to finish")
        with pytest.raises(httpx2.ConnectError):
            httpx2.post(f"{proxy.url}{path}", json=body, headers=headers)
        late = proxy.control.http.post("/v1/responses", json=asked, headers=headers)
        assert (late.status_code, late.json()["error"]["type"]) == (503, "server_error")
        go.set()
        replies = [answer.result() for answer in answers]
    assert proxy.process.wait() == 0, proxy.log
    assert [answer.status_code for answer in replies] == [200] * 4, [answer.text for answer in replies]
    assert all("Done." in answer.text for answer in replies)
    assert len(canned.heard) == len(asks)


@pytest.mark.parametrize("second", [False, True])
def test_unfinished_requests_are_told_that_the_process_ends(
    second: bool, canned: Canned, start: Callable[..., Proxy]
) -> None:
    canned.says = [threading.Event()]
    proxy = start(canned.url, tools=str(STUBBORN), drain_timeout="600" if second else "0.2")
    with ThreadPoolExecutor(1) as pool:
        url, headers = f"{proxy.url}{MODEL_PATH}:generateContent", {"x-goog-api-key": "a-secret-key"}
        answer = pool.submit(httpx2.post, url, json={"contents": [user("Hi")]}, headers=headers, timeout=20)
        until(lambda: bool(canned.heard), "it waits")
        os.kill(proxy.process.pid, signal.SIGINT)
        proxy.process.wait_for("1 request has")
        if second:
            os.kill(proxy.process.pid, signal.SIGINT)
        assert answer.result().status_code == 503
    assert proxy.process.wait() == 0, proxy.log
    assert "1 request did not finish in time" in proxy.log


def placeholders(proxy: Proxy) -> None:
    """The session `hand` needs no loop."""
    hand = proxy.control.session("hand")
    hand.tools()
    hand.policy(delivery="placeholder")


@pytest.mark.parametrize("beginning", [[], [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[{"]])
def test_clients_without_a_loop_are_told_in_the_form_of_the_api(
    beginning: list[bytes], canned: Canned, start: Callable[..., Proxy]
) -> None:
    canned.says = [*beginning, threading.Event()]
    proxy = start(canned.url, drain_timeout="0.2")
    placeholders(proxy)
    native = {"contents": [user("Hi")]}
    named = {"model": "gemini-3-flash"}
    asked: list[tuple[str, Json]] = [
        (f"/@hand{MODEL_PATH}:generateContent", native),
        (f"/@plain{MODEL_PATH}:generateContent", native),
        ("/@plain/v1beta/openai/chat/completions", named | {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/@plain/v1beta/interactions", named | {"input": "Hi"}),
    ]
    if not beginning:
        stream = f"{MODEL_PATH}:streamGenerateContent?alt=sse"
        asked += [(f"/@hand{stream}", native), (f"/@plain{stream}", native)]
        asked += [(path, body | {"stream": True}) for path, body in asked[2:4]]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [
            pool.submit(httpx2.post, f"{proxy.url}{path}", json=body, headers=KEY, timeout=20) for path, body in asked
        ]
        until(lambda: len(canned.heard) == len(asked), "all of them wait")
        os.kill(proxy.process.pid, signal.SIGTERM)
        replies = [answer.result() for answer in answers]
    assert proxy.process.wait() == 0, proxy.log
    assert [answer.status_code for answer in replies] == [503] * len(asked), [answer.text for answer in replies]
    for answer, (path, _) in zip(replies, asked, strict=True):
        document = answer.json()
        error = (document[0] if isinstance(document, list) else document)["error"]
        assert "toolgraft: the proxy is " in error["message"]
        assert ("status" in error) is ("interactions" not in path)
    assert "Traceback" not in proxy.log


def test_a_placeholder_s_stream_that_has_begun_ends_with_an_error(canned: Canned, start: Callable[..., Proxy]) -> None:
    """That of a session without tools may break off."""
    event = b'data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "Begun"}]}}]}\r\n\r\n'
    canned.says = [*chunked([event]), threading.Event()]
    proxy = start(canned.url, drain_timeout="0.2")
    placeholders(proxy)

    def read(session: str) -> tuple[bytes, bool]:
        url, data = f"{proxy.url}/@{session}{MODEL_PATH}:streamGenerateContent?alt=sse", b""
        with httpx2.stream("POST", url, json={"contents": [user("Hi")]}, headers=KEY, timeout=20) as answer:
            try:
                for piece in answer.iter_bytes():
                    data += piece
                    begun.release()
            except httpx2.RemoteProtocolError:
                return data, False
        return data, True

    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(2) as pool:
        hand, plain = (pool.submit(read, session) for session in ("hand", "plain"))
        assert begun.acquire(timeout=20)
        assert begun.acquire(timeout=20)
        os.kill(proxy.process.pid, signal.SIGTERM)
        data, whole = hand.result()
        assert (b"Begun" in data, whole) == (True, True)
        assert json.loads(data.split(b"data: ")[-1])["error"]["code"] == 503
        assert plain.result() == (event, False)
    assert proxy.process.wait() == 0, proxy.log
    assert "Traceback" not in proxy.log


def test_clients_that_wait_for_a_result_are_told_that_the_process_ends(
    gemini: Gemini, start: Callable[..., Proxy]
) -> None:
    proxy = start(gemini.url, drain_timeout="0.2")
    session = new_session(proxy)
    url, words = f"{proxy.url}/@{session.name}{MODEL_PATH}:generateContent", user('call get_weather {"city": "Oslo"}')
    first = httpx2.post(url, json={"contents": [words]}, headers=KEY).json()
    history = {"contents": [words, first["candidates"][0]["content"], user("repeat the results")]}
    session.policy(on_pending="wait")
    hits = proxy.control.metric("toolgraft_ledger_hits_total")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx2.post, url, json=history, headers=KEY, timeout=20)
        until(lambda: proxy.control.metric("toolgraft_ledger_hits_total") > hits, "the request is looked up")
        os.kill(proxy.process.pid, signal.SIGTERM)
        assert answer.result().status_code == 503
    assert proxy.process.wait() == 0, proxy.log
    assert len(gemini.requests) == 1


@pytest.mark.parametrize("door", ["proxy", "/v1/gemini", "/v1/responses"])
def test_new_requests_are_refused_while_the_process_ends_and_nothing_goes_upstream(
    door: str, gemini: Gemini, start: Callable[..., Proxy], tmp_path: Path
) -> None:
    """A tool that does not let itself be ended keeps the process meanwhile."""
    key = {"x-goog-api-key": "a-secret-key"}
    proxy = start(gemini.url, tools=str(STUBBORN), upstream=gemini.url)
    file = tmp_path / "started"
    with closing(asked(proxy, f'call swallow {{"file": "{file}"}}')):
        until(file.exists, "the tool has started")
        os.kill(proxy.process.pid, signal.SIGTERM)
        statuses = set()
        while True:
            try:
                if door == "proxy":
                    url = f"{proxy.url}/@bob{MODEL_PATH}:generateContent"
                    got = httpx2.post(url, json={"contents": [user("call lookup {}")]}, headers=key, timeout=20)
                else:
                    body = {"model": "gemini-3-flash", "input": 'call swallow {"file": 5}'}
                    got = proxy.control.http.post(door, json=body, headers=key, timeout=20)
            except httpx2.TransportError:
                break
            statuses.add(got.status_code)
        assert proxy.process.wait() == 0, proxy.log
    assert statuses <= {200, 503}
    assert not [request for request in gemini.requests if "/@" in request["path"]]
    assert not [request for request in gemini.requests if "there is no tool" in str(request["body"])]
