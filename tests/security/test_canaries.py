"""Canaries: each secret that the proxy is given is also repeated by the model, endpoints, MCP servers and exceptions,
and is found in nothing that toolgraft writes."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.own_secrets import own_secrets
from tests.e2e.proxies import Proxy, Session, mcp_file, user
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


@pytest.mark.e2e
def test_no_canary_is_in_anything_that_is_written(proxy: Proxy, upstream: Leaky, tmp_path: Path) -> None:
    loops, captured = proxy.control.session("loops"), proxy.control.session("captured")
    endpoint(loops, upstream.url)
    captured.tools([{"name": "captured", "description": "It."}])
    captured.policy(delivery="placeholder")
    outputs: list[str] = []
    regular = f"http://captured:{CLIENTS['password']}@{proxy.address}"
    with httpx2.Client(proxy=regular, timeout=30) as through, httpx2.Client(timeout=30) as direct:
        for name in ("loops", "captured"):
            for words in ("hello", "please fail", "please break"):
                for method in ("generateContent?", "streamGenerateContent?alt=sse&"):
                    path = f"{MODEL}:{method}$key={CLIENTS['query']}"
                    body: Json = {"contents": [user(f"{words} {method}")]}
                    direct.post(f"{proxy.url}/@{name}{path}", json=body, headers=HEADERS)
                    through.post(f"http://generativelanguage.googleapis.com{path}", json=body, headers=HEADERS)
        token = {"authorization": f"Bearer {PROXYS['token']}", "x-graft-session": "loops"}
        for words in ("hello", "please fail", "please break"):
            for stream in (False, True):
                for door in ("/v1/gemini", "/v1/responses"):
                    body = {"model": "gemini-3-flash", "input": f"{words} {stream}", "stream": stream}
                    outputs.append(direct.post(f"{proxy.control.url}{door}", json=body, headers=token).text)

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
    # they were all sent, and repeated
    asked = "".join(head for head, _ in upstream.heard)
    assert [one for one in (*CLIENTS, "gateway") if {**CLIENTS, **PROXYS}[one] not in asked] == ["password"]
    assert not [name for name, one in PROXYS.items() if any(one in body for _, body in upstream.heard)]
    assert proxy.stop() == 0

    files = [path for path in (*proxy.state.rglob("*"), tmp_path / "recorded.flows") if path.is_file()]
    written = {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}
    kept = f'"headers":{{"x-anything":"{PROXYS["executor"]}"}}'  # in its toolset, to be sent again
    written = {path: text.replace(kept, "") for path, text in written.items()}
    assert len(written[str(tmp_path / "recorded.flows")]) > 10_000
    assert "please fail" in proxy.log
    assert "MCP server 'leaky': on stderr: *** \\x1b[2J" in proxy.log
    texts = {**written, "console": proxy.log, "answers": "\n".join(outputs)}
    for name, secret in {**CLIENTS, **PROXYS}.items():
        found = {place: text[at - 200 : at + 60] for place, text in texts.items() if (at := text.find(secret)) >= 0}
        assert found == {}, name


async def test_the_passwords_of_proxies_are_known_to_be_secrets(tmp_path: Path) -> None:
    given = {"upstream_auth": "someone:canary-upstream-7320", "proxyauth": "me:canary-proxyauth-7321"}
    async with Proxied(tmp_path, "http://127.0.0.1:9", mitm=given):
        coded = base64.b64encode(given["upstream_auth"].encode()).decode()
        text = f"407 for canary-upstream-7320 and canary-proxyauth-7321, that is {coded}"
        assert own_secrets.redaction.text(text) == "407 for *** and ***, that is ***"
