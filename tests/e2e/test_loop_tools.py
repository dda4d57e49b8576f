"""The kinds of executors: a Python file, MCP servers over stdio and HTTP, HTTP endpoints; and their failures."""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import MODEL_PATH, Proxy, Session, ask, new_session, responses, user
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]


@pytest.mark.parametrize("name", ["local_add", pytest.param("web_add", marks=pytest.mark.smoke)])
def test_an_mcp_server_is_called(name: str, looper: Proxy, bare: Session, gemini: Gemini) -> None:
    assert ask(looper, bare, f'call {name} {{"a": 20, "b": 3}}') == f'{name} returned {{"sum": 23}}.'
    assert gemini.errors == []
    (call,) = bare.calls()
    assert (call["name"], call["status"], call["result"]) == (name, "done", {"sum": 23})


def test_an_mcp_server_knows_nothing_of_the_proxys_environment(looper: Proxy, bare: Session) -> None:
    ask(looper, bare, "call local_about {}")
    environment = bare.calls()[0]["result"]["environment"]
    assert not {"TOOLGRAFT_HOME", "PYTHONPATH"} & set(environment)


def test_an_mcp_server_that_is_killed_in_a_call_is_back_for_the_next(
    looper: Proxy, bare: Session, gemini: Gemini, tmp_path: Path
) -> None:
    ask(looper, bare, "call local_about {}")
    pid = bare.calls()[0]["result"]["pid"]
    file = tmp_path / "marks"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, looper, bare, f'call local_hang {{"file": "{file}"}}')
        until(file.exists, "the tool has started")
        os.kill(pid, signal.SIGKILL)
        answer = asked.result(20)
    assert answer.startswith('local_hang returned {"error": "MCP server \'local\': ')
    assert ask(looper, bare, 'call local_add {"a": 1, "b": 1}') == 'local_add returned {"sum": 2}.'
    ask(looper, bare, "call local_about {}")
    assert bare.calls()[-1]["result"]["pid"] != pid
    assert gemini.errors == []


BAD = {
    "unknown": ("nothing {}", "unknown tool: nothing"),
    "raises": ('broken {"message": "no, never"}', "ValueError: no, never"),
    "hangs": ("endless {}", "endless took longer than 0.2 s"),
    "5 MB": ("huge {}", "5242882 bytes"),
    "bytes": ("raw {}", "bytes, which are not JSON"),
    "no JSON": ("no_json {}", "what is not JSON"),
    "misfit": ('weather {"city": 5}', "the arguments do not fit: `city`"),
    "missing": ("weather {}", "the arguments do not fit: "),
    "mcp raises": ('web_fail {"message": "no, never"}', "Error executing tool fail"),
    "mcp misfit": ('local_add {"a": "one", "b": 2}', "the arguments do not fit: `a`"),
}


def test_calls_that_fail_beside_good_ones_in_a_stream_are_told_to_the_model_and_spoil_nothing(
    looper: Proxy, bare: Session, gemini: Gemini
) -> None:
    calls = [*(call for call, _ in BAD.values()), 'weather {"city": "Oslo"}']
    answer = ask(looper, bare, " and ".join(f"call {call}" for call in calls), stream=True)
    assert gemini.errors == []
    assert answer.endswith('weather returned {"city": "Oslo", "celsius": 4}.')
    *failed, good = responses(gemini.last)
    assert list(good) == ["city", "celsius"]
    kept = [call for call in bare.calls() if call["status"] == "failed"]
    assert [call["error"] for call in kept] == [response["error"] for response in failed]
    for response, (_, error) in zip(failed, BAD.values(), strict=True):
        assert list(response) == ["error"]
        assert error in response["error"]
        assert len(response["error"]) < 1000


@pytest.mark.smoke
def test_a_hanging_tool_is_ended_by_the_sessions_timeout(
    looper: Proxy, bare: Session, gemini: Gemini, tmp_path: Path
) -> None:
    bare.policy(tool_timeout=0.3)
    file = tmp_path / "marks"
    answer = ask(looper, bare, f'call hang {{"file": "{file}"}} and call local_hang {{"file": "{file}.mcp"}}')
    assert answer == (
        'hang returned {"error": "hang took longer than 0.3 s"}. '
        'local_hang returned {"error": "local_hang took longer than 0.3 s"}.'
    )
    until(lambda: "cancelled" in file.read_text(), "the tool is cancelled")
    until(lambda: "cancelled" in Path(f"{file}.mcp").read_text(), "the server is told that nobody waits any more")


@pytest.mark.parametrize(
    "method", ["generateContent", pytest.param("streamGenerateContent?alt=sse", marks=pytest.mark.smoke)]
)
def test_a_client_that_hangs_up_cancels_the_tool_and_nothing_goes_upstream(
    method: str, looper: Proxy, bare: Session, gemini: Gemini, tmp_path: Path
) -> None:
    file = tmp_path / "marks"
    words = f'say Wait. call hang {{"file": "{file}"}} and call weather {{"city": "Oslo"}}'
    body = json.dumps({"contents": [user(words)]}).encode()
    head = [
        f"POST /@{bare.name}{MODEL_PATH}:{method} HTTP/1.1",
        f"Host: {looper.url.removeprefix('http://')}",
        "x-goog-api-key: a-secret-key",
        f"Content-Length: {len(body)}",
    ]
    host, port = looper.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall("\r\n".join([*head, "", ""]).encode() + body)
        until(file.exists, "the tool has started")
        until(lambda: bare.calls(status="done"), "the other one has its result")
    until(lambda: file.read_text().split() == ["started", "cancelled"], "the tool is cancelled")
    until(lambda: not bare.calls(status="running"), "all is settled")
    hung, ran = bare.calls()
    assert (hung["name"], hung["status"]) == ("hang", "expired")
    assert (ran["name"], ran["status"]) == ("weather", "done")
    # whatever was to come has come by the time that another loop is through
    assert ask(looper, new_session(looper, tools=False), "call hour {}") == 'hour returned {"hour": 12}.'
    assert len(gemini.requests) == 3


@pytest.mark.smoke
def test_three_tools_of_a_step_run_at_once(looper: Proxy, bare: Session, gemini: Gemini, tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    words = " and ".join(f"call gate {json.dumps({'file': str(file)})}" for file in files)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, looper, bare, words)
        until(lambda: all(file.exists() for file in files), "all three have begun")
        for file in files:
            file.with_name(f"{file.name}.open").touch()
        assert asked.result(30) == " ".join(['gate returned {"went": "through"}.'] * 3)


def test_fifty_clients_stream_loops_at_once_and_none_are_mixed_up(
    looper: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    sessions = [new_session(looper, tools=False) for _ in range(50)]
    together = threading.Barrier(50)

    def one(number: int) -> str:
        together.wait(20)
        first = f'call pause {{"seconds": 0.1, "label": "n{number}"}} and call hour {{}}'
        then = f'call weather {{"city": "c{number}"}}'
        return ask(looper, sessions[number], f"say Client {number}. {first} then {then}", stream=True)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(one, range(50)))
    for number, answer in enumerate(answers):
        assert answer == (
            f'Client {number}.pause returned {{"label": "n{number}"}}. hour returned {{"hour": 12}}. '
            f'weather returned {{"city": "c{number}", "celsius": {len(str(number)) + 1}}}.'
        )
    assert gemini.errors == []
    assert len(gemini.requests) == 150
    assert looper.control.metric("toolgraft_errors") == 0
