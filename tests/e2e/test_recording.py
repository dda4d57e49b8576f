"""Recordings: written without secrets, streams included; replayed offline; and an upstream without a network."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import ROOT, environment
from tests.e2e.proxies import DECLARATIONS, Proxy, command, mode, sets, text_of, user, weather
from tests.e2e.upstreams import Gemini
from tests.ports import free_port

Json = dict[str, Any]
PATH = "/v1beta/models/gemini-3-flash-preview"
SECRETS = {
    "x-goog-api-key": "key-in-a-header",
    "cookie": "session=cookie-of-the-client",
    "authorization": "Bearer tok-en",
}
FIRST = [user("What is the weather in Paris?")]


@pytest.fixture
def recorded(tmp_path: Path, gemini: Gemini, start: Callable[..., Proxy]) -> tuple[Path, Proxy, list[Json]]:
    """A chat of two turns, the second a stream with the key in its URL; and what went upstream."""
    path = tmp_path / "chat.mitm"
    proxy = start(gemini.url, record=str(path))
    session = proxy.control.session("default")
    session.tools()
    answer = httpx2.post(f"{proxy.url}{PATH}:generateContent", json={"contents": FIRST}, headers=SECRETS).json()
    session.answer(get_weather=weather)
    placeholder = {"role": "model", "parts": [{"text": text_of(answer)}]}
    second = [*FIRST, placeholder, user("Thanks.")]
    streamed = httpx2.post(
        f"{proxy.url}{PATH}:streamGenerateContent?alt=sse&key=key-in-a-url", json={"contents": second}, headers=SECRETS
    )
    assert "celsius" in streamed.text
    assert not gemini.errors
    return path, proxy, [request["body"] for request in gemini.requests]


def replay(proxy: Proxy, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "addon", "replay", *map(str, arguments)]
    variables = environment(proxy.folder, TOOLGRAFT_HOME=str(proxy.state))
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_a_recording_holds_whole_streams_and_no_secret(recorded: tuple[Path, Proxy, list[Json]]) -> None:
    path = recorded[0]
    data = path.read_bytes()
    for secret in (b"key-in-a-header", b"key-in-a-url", b"cookie-of-the-client", b"tok-en"):
        assert secret not in data
    assert data.count(b"celsius") >= 2, "the answer that streamed is in it, and the result that went upstream"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_replay_with_the_same_tools_sends_what_was_sent(recorded: tuple[Path, Proxy, list[Json]]) -> None:
    path, proxy, sent = recorded
    result = replay(proxy, path, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [one["changed"] for one in found] == [False, False]
    assert [one["after"] for one in found] == sent
    assert "key-in-a-url" not in result.stdout


def test_a_replay_shows_what_other_tools_would_change(recorded: tuple[Path, Proxy, list[Json]], tmp_path: Path) -> None:
    path, proxy, _ = recorded
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([DECLARATIONS[1]]))
    result = replay(proxy, path, "--tools", tools)
    assert result.returncode == 0, result.stderr
    assert '-          "name": "get_weather",' in result.stdout
    assert '[get_weather returned {\\"city\\":\\"Paris\\",\\"celsius\\":5}]' in result.stdout
    assert "2 requests, 2 of them changed" in result.stderr


def test_a_replay_takes_the_options_that_the_proxy_was_started_with(recorded: tuple[Path, Proxy, list[Json]]) -> None:
    path, proxy, _ = recorded
    result = replay(proxy, path, "--set", "graft_store=memory://", "--set", "graft_session=other")
    assert result.returncode == 0, result.stderr
    assert "session default has no toolset: nothing is rewritten" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/none.mitm"], "none.mitm"),
        (["{folder}/text.mitm"], "not a file of mitmproxy flows"),
        (["{file}", "--store", "nothing://"], "the store 'nothing://': its scheme is not one of"),
        (["{file}", "--store", "sqlite:///{folder}/text.mitm"], "text.mitm: "),
        (["{file}", "--store", "sqlite:///{folder}/none/none.db"], "none.db: "),
        (["{file}", "--tools", "{folder}/text.mitm"], "text.mitm"),
        (["{file}", "--set", "graft_delivery=fax"], "graft_delivery='fax': must be one of"),
        (["{file}", "--set", "graft_delivary=loop"], "did you mean graft_delivery?"),
    ],
)
def test_a_recording_that_cannot_be_replayed_is_named(
    arguments: list[str], message: str, recorded: tuple[Path, Proxy, list[Json]], tmp_path: Path
) -> None:
    path, proxy, _ = recorded
    (tmp_path / "text.mitm").write_text("this is no flow")
    result = replay(proxy, *(one.format(folder=tmp_path, file=path) for one in arguments))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_recording_stands_in_for_the_network(
    recorded: tuple[Path, Proxy, list[Json]], gemini: Gemini, start: Callable[..., Proxy], tmp_path: Path
) -> None:
    path = recorded[0]
    gemini.forget()
    replaying = start(gemini.url, folder=tmp_path / "again", arguments=("--server-replay", str(path)))
    session = replaying.control.session("default")
    session.tools()
    answer = httpx2.post(f"{replaying.url}{PATH}:generateContent", json={"contents": FIRST}, headers=SECRETS).json()
    (call,) = session.calls()
    assert text_of(answer) == f"Tool call completed: get_weather [{call['turn_id']}]"
    assert gemini.requests == []


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path, gemini: Gemini) -> None:
    arguments = command(tmp_path, "--mode", mode(gemini.url, free_port()), *sets(record=str(tmp_path), control="off"))
    result = subprocess.run(
        [str(word) for word in arguments],
        env=environment(tmp_path, TOOLGRAFT_HOME=str(tmp_path / "state")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert f"graft_record='{tmp_path}': cannot be written" in result.stdout + result.stderr
