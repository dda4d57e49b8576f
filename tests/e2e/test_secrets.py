"""Keys, tokens and cookies are in none of toolgraft's own places: console, database, events, metrics, recordings."""

from collections.abc import Callable
from pathlib import Path

import httpx2

from tests.e2e.proxies import Proxy, user
from tests.e2e.upstreams import Canned, Gemini, answer

MODELS = "/v1beta/models/gemini-3-flash-preview"
SECRETS = {
    "header": "key-in-a-header-7313",
    "query": "key-in-a-query-7313",
    "bearer": "token-of-a-bearer-7313",
    "cookie": "cookie-of-a-client-7313",
    "set-cookie": "cookie-of-the-server-7313",
}


def test_no_secret_is_written_down(start: Callable[..., Proxy], gemini: Gemini, canned: Canned, tmp_path: Path) -> None:
    recording = tmp_path / "recorded.flows"
    proxy = start(gemini.url, canned.url, record=str(recording), arguments=("--set", "flow_detail=3"))
    session = proxy.control.session("default")
    session.tools()
    canned.says = [answer(b"{}", "200 OK", "application/json", f"Set-Cookie: id={SECRETS['set-cookie']}")]
    headers = {
        "x-goog-api-key": SECRETS["header"],
        "authorization": f"Bearer {SECRETS['bearer']}",
        "cookie": f"session={SECRETS['cookie']}",
    }
    body = {"contents": [user("weather in Paris")]}
    with httpx2.Client(proxy=proxy.user("default")) as through:
        for base, client in (
            (proxy.url, httpx2),
            (proxy.urls[1], httpx2),
            ("http://generativelanguage.googleapis.com", through),
        ):
            for method in ("generateContent?", "streamGenerateContent?alt=sse&", "countTokens?"):
                url = f"{base}{MODELS}:{method}key={SECRETS['query']}&x=1"
                assert client.post(url, json=body, headers=headers).status_code == 200
            # what is no surface's, and what is refused
            client.get(f"{base}{MODELS}?key={SECRETS['query']}", headers=headers)
            url = f"{base}{MODELS}:generateContent?key={SECRETS['query']}"
            client.post(url, json=body, headers=headers | {"origin": "https://evil.example"})
    assert len(session.calls()) >= 4
    # they did reach upstream
    assert all(SECRETS[name] in str(gemini.requests) for name in ("header", "query", "bearer", "cookie"))
    assert SECRETS["query"].encode() in canned.heard[0]

    outputs = [
        proxy.control.http.get("/metrics").text,
        str(session.calls()),
        str(session.turns()),
        str(proxy.control.ask("GET", "/v1/sessions/default")),
    ]
    with proxy.control.http.stream("GET", "/v1/events?after=0") as events:
        received = ""
        for text in events.iter_text():
            received += text
            if received.count("event: call.created") >= 4:
                break
    outputs.append(received)
    assert proxy.stop() == 0

    written = {str(path): path.read_bytes() for path in [*proxy.state.iterdir(), recording] if path.is_file()}
    assert len(written[str(recording)]) > 1000
    assert any(b"get_weather" in data for data in written.values())
    for name, secret in SECRETS.items():
        assert secret not in proxy.log, name
        assert not any(secret in text for text in outputs), name
        assert [path for path, data in written.items() if secret.encode() in data] == [], name
    assert proxy.control.token not in proxy.log
    assert f"{MODELS}:countTokens?key=***&x=1" in proxy.log
    assert "    x-goog-api-key: ***" in proxy.log


def test_the_token_and_the_database_are_their_owners_alone(proxy: Proxy) -> None:
    for name in ("token", "toolgraft.db", "control.url", "proxy.json"):
        assert (proxy.state / name).stat().st_mode & 0o077 == 0, name
    assert proxy.state.stat().st_mode & 0o077 == 0
