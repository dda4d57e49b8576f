"""The example's HAProxy, real, before two proxies that share a Redis: every request goes to another one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.chats import python
from tests.e2e.processes import ROOT, Process, environment, until
from tests.e2e.proxies import MODEL_PATH, TOOLS, Proxy, weather
from tests.e2e.upstreams import Gemini
from tests.ports import free_port
from tests.store import servers

pytestmark = pytest.mark.long

EXAMPLE = ROOT / "examples" / "scale" / "haproxy.cfg"


@pytest.fixture(scope="module")
def redis() -> Iterator[int]:
    with servers.running(servers.program_under_test()) as port:
        yield port


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory, strict: Gemini, redis: int) -> Iterator[list[Proxy]]:
    found: list[Proxy] = []
    store = f"redis://127.0.0.1:{redis}"
    try:
        for name in ("one", "two"):
            folder = tmp_path_factory.mktemp(name)
            found += [Proxy(folder, strict.url, store=store, tools=str(TOOLS))]
        yield found
    finally:
        for proxy in found:
            proxy.stop()


@pytest.fixture(scope="module")
def ports() -> dict[int, int]:
    """HAProxy's ports, by those of the example."""
    return {public: free_port() for public in (8081, 8741, 8080)}


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory, proxies: list[Proxy], ports: dict[int, int]) -> Iterator[str]:
    """The URL of HAProxy, with the example's configuration but for its addresses."""
    haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin") or servers.need("haproxy")
    text = EXAMPLE.read_text()
    for public, own in ports.items():
        text = text.replace(f"bind :{public}", f"bind 127.0.0.1:{own}")
    controls = [proxy.control.url.rpartition(":")[2] for proxy in proxies]
    for host, proxy, control in zip(("10.0.0.11", "10.0.0.12"), proxies, controls, strict=True):
        text = text.replace(f"{host}:8081", f"{proxy.url.removeprefix('http://')} port {control}")
        text = text.replace(f"{host}:8741", f"127.0.0.1:{control} port {control}")
        text = text.replace(f"{host}:8080", f"{proxy.address} port {control}")
    assert "10.0.0." not in text
    folder = tmp_path_factory.mktemp("haproxy")
    path = folder / "haproxy.cfg"
    path.write_text(text.replace("check port 8741", "check").replace("maxconn 20000", "maxconn 200"))
    process = Process("haproxy", [haproxy, "-W", "-f", path], environment(folder))
    process.wait_for("Loading success")
    yield f"http://127.0.0.1:{ports[8081]}"
    process.stop()


def test_every_request_of_a_chat_goes_to_another_proxy(
    tmp_path: Path, balanced: str, proxies: list[Proxy], gemini: Gemini
) -> None:
    """Five turns of google-genai: placeholders that are answered, then loops, and all of it told again."""
    one, two = proxies
    one.control.session("balanced").tools()
    one.control.session("balanced").policy(delivery="placeholder")
    before = [proxy.control.metric("toolgraft_requests_total") for proxy in proxies]
    url = f"{balanced}/@balanced"
    with python(tmp_path, "stream", model="gemini-3-flash-preview", key="a-secret-key", base_url=url) as chat:
        for question in ("weather in Paris", 'call get_weather {"city": "Oslo"}'):
            assert "Tool call completed: get_weather" in chat.say(question)
            two.control.session("balanced").answer(get_weather=weather)
        two.control.session("balanced").policy(delivery="auto")
        assert '"celsius": 4' in chat.say('call weather {"city": "Bern"}')
        assert '"celsius": 5' in chat.say('call weather {"city": "Turin"}')
        summary = chat.say("repeat the results")
    for city in ("Paris", "Oslo", "Bern", "Turin"):
        assert city in summary
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
    after = [proxy.control.metric("toolgraft_requests_total") for proxy in proxies]
    assert sorted(now - then for now, then in zip(after, before, strict=True)) == [2, 3]


def test_if_no_proxy_is_ready_any_of_them_is_asked(balanced: str, ports: dict[int, int], redis: int) -> None:
    def post() -> httpx2.Response:
        body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        url = f"{balanced}/@anyone{MODEL_PATH}:generateContent"
        return httpx2.post(url, json=body, headers={"x-goog-api-key": "a-secret-key"}, timeout=30)

    with servers.stopped(redis):
        control = f"http://127.0.0.1:{ports[8741]}/healthz/live"
        until(lambda: "No server is available" in httpx2.get(control, timeout=30).text, "no proxy is ready")
        got = post()
        assert (got.status_code, got.json()["error"]["status"]) == (503, "UNAVAILABLE"), "the proxy's own answer"
    until(lambda: httpx2.get(control, timeout=30).status_code == 200, "both are ready")
    assert post().status_code == 200
