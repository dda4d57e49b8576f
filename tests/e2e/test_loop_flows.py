"""Loops as mitmproxy shows and writes them: each upstream request under its true URL, and the client's own flow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from mitmproxy import http

from tests.e2e.proxies import TOOLS, Proxy, sse, text_of, user
from tests.e2e.test_recording import replay
from tests.e2e.upstreams import Gemini
from tests.flows.recordings import flows_of

PATH = "/v1beta/models/gemini-3-flash-preview"
KEYS = {"x-goog-api-key": "key-in-a-header", "cookie": "id=cookie-of-the-client"}
QUESTION = {"contents": [user('say Wait. call weather {"city": "Oslo"} and call hour {}')]}
ANSWER = 'Wait.weather returned {"city": "Oslo", "celsius": 4}. hour returned {"hour": 12}.'

Json = dict[str, Any]


class Looped(NamedTuple):
    """What two loops have left. `answers` are what the client got, `sent` what went upstream."""

    proxy: Proxy
    upstream: str
    answers: list[bytes]
    sent: list[Json]
    written: Path
    recorded: Path


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Looped:
    """By a proxy that has stopped: JSON in reverse mode, and a stream whose host is redirected, with the key in its
    URL."""
    folder = tmp_path_factory.mktemp("looped")
    written, recorded = folder / "written", folder / "recorded"
    with Gemini() as gemini:
        writes = ("-w", str(written), "--set", "flow_detail=2")
        proxy = Proxy(folder, gemini.url, tools=str(TOOLS), record=str(recorded), arguments=writes)
        plain = httpx2.post(f"{proxy.url}{PATH}:generateContent", json=QUESTION, headers=KEYS)
        with httpx2.Client(proxy=proxy.user("other")) as client:
            url = f"http://generativelanguage.googleapis.com{PATH}:streamGenerateContent?alt=sse&key=key-in-a-url"
            streamed = client.post(url, json=QUESTION, headers=KEYS)
        assert proxy.stop() == 0
        assert gemini.errors == []
        sent = [request["body"] for request in gemini.requests]
    assert text_of(plain.json()) == ANSWER
    assert text_of(sse(streamed.text)) == ANSWER
    return Looped(proxy, gemini.url, [plain.content, streamed.content], sent, written, recorded)


@pytest.mark.smoke
def test_every_request_of_a_loop_is_written_under_its_true_url_beside_the_clients(looped: Looped) -> None:
    flows = flows_of(looped.written)
    urls = [
        f"{looped.upstream}{PATH}:generateContent",
        f"http://generativelanguage.googleapis.com{PATH}:streamGenerateContent?alt=sse&key=key-in-a-url",
    ]
    assert [flow.request.url for flow in flows] == [urls[0]] * 3 + [urls[1]] * 3
    assert [body_of(flow.request) for flow in flows] == [*looped.sent[:2], QUESTION, *looped.sent[2:], QUESTION]
    assert not any("x-toolgraft-loop" in flow.request.headers for flow in flows)
    contents = [flow.response.content if flow.response else None for flow in flows]
    assert [contents[2], contents[5]] == looped.answers
    assert all(content and (b"functionCall" in content) == (n % 3 == 0) for n, content in enumerate(contents))
    assert [flow.response.status_code for flow in flows if flow.response] == [200] * 6
    assert all(flow.request.headers["x-goog-api-key"] == "key-in-a-header" for flow in flows)
    assert flows[0].request.headers["host"] == looped.upstream.removeprefix("http://")
    assert flows[3].request.headers["host"] == "generativelanguage.googleapis.com"
    assert not any(flow.is_replay for flow in flows)


def body_of(message: http.Message) -> Json:
    document: Json = json.loads(message.content or b"")
    return document


def test_the_rounds_of_a_loop_are_recorded_and_can_be_replayed(looped: Looped, tmp_path: Path) -> None:
    flows = flows_of(looped.recorded)
    assert [body_of(flow.request) for flow in flows] == looped.sent
    assert [flow.metadata["graft"]["session"] for flow in flows] == ["default"] * 2 + ["other"] * 2
    assert all(flow.response and flow.response.content for flow in flows)
    data = looped.recorded.read_bytes()
    for secret in (b"key-in-a-header", b"key-in-a-url", b"cookie-of-the-client"):
        assert secret not in data
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(looped.sent[0]["tools"]))
    found = replay(looped.proxy, looped.recorded, "--json", "--tools", tools)
    assert found.returncode == 0, found.stderr
    assert [one["changed"] for one in json.loads(found.stdout)] == [False] * 4


def test_no_key_is_on_the_console(looped: Looped) -> None:
    log = looped.proxy.log
    assert f"{PATH}:streamGenerateContent?alt=sse&key=***" in log
    assert log.count("x-goog-api-key: ***") == 6
    for secret in (*KEYS.values(), "key-in-a-url"):
        assert secret not in log
    assert "x-toolgraft-loop" not in log


@pytest.mark.parametrize(("file", "extra"), [("recorded", "forward"), ("written", "kill"), ("recorded", "404")])
def test_a_recorded_loop_stands_in_for_an_upstream_that_is_gone(
    looped: Looped, start: Callable[..., Proxy], file: str, extra: str
) -> None:
    """What is not recorded is killed or answered in the upstream's place: a request of a loop, never the client's."""
    options = ("--set", f"server_replay_extra={extra}", "--set", "server_replay_reuse=true")
    arguments = ("--server-replay", str(getattr(looped, file)), *options)
    proxy = start(looped.upstream, tools=str(TOOLS), arguments=arguments)
    url = f"{proxy.url}{PATH}:generateContent"
    replayed = httpx2.post(url, json=QUESTION, headers=KEYS)
    assert text_of(replayed.json()) == ANSWER
    with httpx2.Client(proxy=proxy.user("other")) as client:
        google = f"http://generativelanguage.googleapis.com{PATH}:streamGenerateContent?alt=sse&key=REMOVED"
        google = google if file == "recorded" else google.replace("REMOVED", "key-in-a-url")
        assert text_of(sse(client.post(google, json=QUESTION, headers=KEYS).text)) == ANSWER
    other = httpx2.post(url, json={"contents": [user("Something else")]}, headers=KEYS)
    assert other.status_code == {"forward": 502, "kill": 499, "404": 404}[extra]


def test_a_proxy_that_asks_for_a_password_asks_the_client_alone(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url, tools=str(TOOLS), arguments=("--proxyauth", "someone:secret"))
    url = f"{proxy.url}{PATH}:generateContent"
    assert httpx2.post(url, json=QUESTION, headers=KEYS).status_code == 401
    answer = httpx2.post(url, json=QUESTION, headers=KEYS, auth=("someone", "secret"))
    assert text_of(answer.json()) == ANSWER
    assert not any("authorization" in request["headers"] for request in gemini.requests)
