"""Canaries: each secret that the proxy is given is also repeated by the model, endpoints, MCP servers and exceptions,
and is found in nothing that toolgraft writes."""

import base64
import itertools
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from addon.monitoring.own_secrets import own_secrets
from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, Session, mcp_file, user
from tests.faults.dialects import COMPLETIONS, GEMINI, INTERACTIONS
from tests.hooks.proxied import Proxied
from tests.security import leaky
from tests.security.leaky import Leaky

Json = dict[str, Any]

CLIENTS = {
    "key": "canary-key-of-a-client-7311",
    "query": "canary-key-in-a-query-7312",
    "bearer": "canary-bearer-7313",
    "cookie": "canary-cookie-7314",
    "password": "canary-password-7315",
    "vault": "canary-vault-token-7322",
    "subscription": "canary-subscription-7323",
    "helicone": "canary-of-a-gateway-7324",
}
PROXYS = {
    "gateway": "canary-gateway-key-7316",
    "executor": "canary-executor-header-7317",
    "environment": "canary-environment-7318",
    "token": "canary-token-7319",
}
APIS = (":generateContent", ":streamGenerateContent", "/chat/completions", "/interactions", "BidiGenerateContent")
GOOGLE = "generativelanguage.googleapis.com"
WORDS = ("hello", "please fail", "please break")
WORKED = ["own_shows", "own_raises", "made_shows", "made_raises"]
LIVE = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent?alt=ws"
MODEL = "/v1beta/models/gemini-3-flash-preview"
HEADERS = {
    "x-goog-api-key": CLIENTS["key"],
    "authorization": f"Bearer {CLIENTS['bearer']}",
    "cookie": f"session={CLIENTS['cookie']}",
    "referer": f"https://app.example/?%6bey={CLIENTS['query']}",
    "X-Vault-Token": CLIENTS["vault"],
    "Ocp-Apim-Subscription-Key": CLIENTS["subscription"],
    "Helicone-Auth": f"Bearer {CLIENTS['helicone']}",
}


@pytest.fixture
def upstream() -> Iterator[Leaky]:
    with Leaky().serving() as upstream:
        yield upstream


@pytest.fixture
def proxy(tmp_path: Path, upstream: Leaky) -> Iterator[Proxy]:
    tools = tmp_path / "tools.py"
    tools.write_text(leaky.TOOLS)
    server = {"command": sys.executable, "args": [leaky.__file__], "env": {"SOME_TOKEN": PROXYS["environment"]}}
    proxy = Proxy(
        tmp_path,
        upstream.url,
        tools=str(tools),
        mcp=str(mcp_file(tmp_path / "mcp", leaky=server)),
        record=str(tmp_path / "recorded.flows"),
        upstream=upstream.url,
        token=PROXYS["token"],
        environ={"GEMINI_API_KEY": PROXYS["gateway"]},
        arguments=("--set", "flow_detail=4", "--set", "termlog_verbosity=debug"),
    )
    proxy.control.http.headers["authorization"] = f"Bearer {PROXYS['token']}"
    yield proxy
    proxy.stop()


def endpoint(session: Session, url: str) -> None:
    executor = {"type": "http", "url": f"{url}/tool", "headers": {"x-anything": PROXYS["executor"]}}
    session.tools(
        [{"name": name, "description": "It.", "executor": executor} for name in ("endpoint_shows", "endpoint_raises")]
    )


def requests() -> Iterator[tuple[str, Json]]:
    """Paths and bodies, in every API."""
    for words, dialect in itertools.product(WORDS, (GEMINI, COMPLETIONS, INTERACTIONS)):
        for framing in ("JSON", "SSE"):
            path = dialect.paths[framing]
            path += f"{'&' if '?' in path else '?'}$key={CLIENTS['query']}"
            yield path, dialect.request(framing, f"{words} {dialect.name} {framing}")


def live(base: str, session: Session, regular: str | None = None) -> Iterator[str]:
    """What a client of a Live connection is given. `regular`: the proxy that it goes through."""
    url, before = f"{base}{LIVE}&$key={CLIENTS['query']}", len(session.calls())
    with connect(url, additional_headers=HEADERS, proxy=regular) as connection:
        connection.send(json.dumps({"setup": {"model": "models/gemini-live-2.5-flash-preview"}}))
        yield str(connection.recv(10))
        message = {"clientContent": {"turns": [user("hello")], "turnComplete": True}}
        connection.send(json.dumps(message))
        yield str(connection.recv(10))
        until(lambda: len(session.calls()) > before, "the calls are captured")
        if session.name == "loops":
            while "turnComplete" not in (frame := str(connection.recv(10))):
                yield frame
        connection.send(json.dumps({"clientContent": {"turns": [user("please break")]}}))
        with suppress(ConnectionClosed):
            while True:
                yield str(connection.recv(10))


def worked(proxy: Proxy) -> Iterator[str]:
    """What is answered where workers repeat the tokens that they are given, in results and in errors."""
    session = proxy.control.session("worked")
    session.tools([{"name": name, "executor": {"type": "worker"}} for name in WORKED])
    made = proxy.control.ask("POST", "/v1/tokens", json={"scopes": ["worker"], "name": "w"})
    PROXYS["worker"] = made["token"]
    body = {"contents": [user("hello")]}
    with ThreadPoolExecutor() as pool, httpx2.Client(base_url=proxy.control.url, timeout=30) as worker:
        asking = pool.submit(httpx2.post, f"{proxy.url}/@worked{MODEL}:generateContent", json=body, headers=HEADERS)
        for token in (PROXYS["token"], PROXYS["worker"]) * 2:
            worker.headers["authorization"] = f"Bearer {token}"
            call = worker.post("/v1/calls/claim", json={"session": "worked", "names": WORKED, "wait": 10}).json()
            answer = {"error": f"failed {token}"} if "raises" in call["name"] else {"result": {"echo": token}}
            yield worker.post(f"/v1/calls/{call['call_id']}/result", json=answer).text
        asking.result()
    yield str(session.calls())


@pytest.mark.e2e
def test_no_canary_is_in_anything_that_is_written(proxy: Proxy, upstream: Leaky, tmp_path: Path) -> None:
    loops, captured = proxy.control.session("loops"), proxy.control.session("captured")
    endpoint(loops, upstream.url)
    captured.tools([{"name": "captured", "description": "It."}])
    captured.policy(delivery="placeholder")
    answers: list[str] = []  # to clients, of whom each knows its own secrets
    outputs: list[str] = []
    regular = f"http://captured:{CLIENTS['password']}@{proxy.address}"
    with httpx2.Client(proxy=regular, timeout=30) as through, httpx2.Client(timeout=30) as direct:
        for path, body in requests():
            urls = [f"{proxy.url}/@{name}{path}" for name in ("loops", "captured")]
            answers += [direct.post(url, json=body, headers=HEADERS).text for url in urls]
            through.post(f"http://{GOOGLE}{path}", json=body, headers=HEADERS)
        for words, stream, door in itertools.product(WORDS, (False, True), ("/v1/gemini", "/v1/responses")):
            body = {"model": "gemini-3-flash", "input": f"{words} {stream}", "stream": stream}
            token = {"authorization": f"Bearer {PROXYS['token']}", "x-graft-session": "loops"}
            outputs.append(direct.post(f"{proxy.control.url}{door}", json=body, headers=token).text)
    for session in (loops, captured):
        answers += live(f"{proxy.url.replace('http', 'ws')}/@{session.name}", session)
    answers += live(f"ws://{GOOGLE}", captured, regular)
    outputs += worked(proxy)

    calls = [*loops.calls(), *captured.calls()]
    assert {call["name"] for call in calls} == {*leaky.CALLS, "captured"}
    for call in loops.calls():
        words = str(call["result"]) + str(call["error"])
        assert "***" in words or "answered 500" in words, call
    outputs += [
        str(calls),
        str(loops.turns()),
        str(captured.turns()),
        str(proxy.control.ask("GET", "/v1/sessions/loops")),
    ]
    outputs.append(proxy.control.http.get("/metrics").text)
    # they were all sent, and repeated, in every API
    for api in APIS:
        asked = "".join(head for head, _ in upstream.heard if api in head)
        assert [name for name, secret in CLIENTS.items() if secret not in asked] == ["password"], api
    assert any(PROXYS["gateway"] in head for head, _ in upstream.heard)
    assert not [name for name, one in PROXYS.items() if any(one in body for _, body in upstream.heard)]
    assert proxy.stop() == 0

    files = [path for path in (*proxy.state.rglob("*"), tmp_path / "recorded.flows") if path.is_file()]
    written = {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}
    kept = f'"headers":{{"x-anything":"{PROXYS["executor"]}"}}'  # in its toolset, to be sent again
    written = {path: text.replace(kept, "") for path, text in written.items()}
    recorded = written[str(tmp_path / "recorded.flows")]
    assert not [api for api in APIS if api not in recorded]
    assert "please fail" in proxy.log
    assert "MCP server 'leaky': on stderr: *** \\x1b[2J" in proxy.log
    texts = {**written, "console": proxy.log, "answers": "\n".join(outputs)}
    assert not [name for name, secret in PROXYS.items() if secret in str(answers)]
    for name, secret in {**CLIENTS, **PROXYS}.items():
        found = {place: text[at - 200 : at + 60] for place, text in texts.items() if (at := text.find(secret)) >= 0}
        assert found == {}, name


@pytest.mark.e2e
async def test_the_passwords_of_proxies_are_known_to_be_secrets(tmp_path: Path) -> None:
    given = {"upstream_auth": "someone:canary-upstream-7320", "proxyauth": "me:canary-proxyauth-7321"}
    async with Proxied(tmp_path, "http://127.0.0.1:9", mitm=given):
        coded = base64.b64encode(given["upstream_auth"].encode()).decode()
        text = f"407 for canary-upstream-7320 and canary-proxyauth-7321, that is {coded}"
        assert own_secrets.redaction.text(text) == "407 for *** and ***, that is ***"
