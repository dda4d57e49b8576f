"""The example's HAProxy, real, before two proxies that share a Redis: every request goes to another one."""

import random
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.chats import python
from tests.e2e.processes import ROOT, Process, environment, until
from tests.e2e.proxies import MODEL_PATH, TOOLS, Proxy, weather
from tests.e2e.upstreams import Gemini
from tests.store import servers

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")]

EXAMPLE = ROOT / "examples" / "scale" / "haproxy.cfg"


@pytest.fixture(scope="module")
def redis() -> Iterator[int]:
    with servers.running(servers.program_under_test()) as port:
        yield port


@pytest.fixture(scope="module")
def host() -> str:
    """An address of this machine whose ports nobody else uses: the example's are fixed."""
    return ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory, strict: Gemini, redis: int, host: str) -> Iterator[list[Proxy]]:
    found: list[Proxy] = []
    store = f"redis://127.0.0.1:{redis}"
    try:
        for instance in (1, 2):
            modes = f"regular@{host}:{instance}8080", f"reverse:{strict.url}@{host}:{instance}8081"
            arguments = tuple(word for mode in modes for word in ("--mode", mode))
            folder = tmp_path_factory.mktemp(f"proxy{instance}")
            control = f"{host}:{instance}8741"
            found += [Proxy(folder, arguments=arguments, store=store, control=control, tools=str(TOOLS))]
        yield found
    finally:
        for proxy in found:
            proxy.stop()


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory, proxies: list[Proxy], host: str) -> Iterator[str]:
    """The URL of HAProxy, with the example's configuration."""
    haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin") or servers.need("haproxy")
    environ = environment(tmp_path_factory.mktemp("haproxy"), BIND=host, ONE=host, TWO=host)
    process = Process("haproxy", [haproxy, "-W", "-f", EXAMPLE], environ)
    process.wait_for("Loading success")
    yield f"http://{host}:8081"
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


@pytest.mark.parametrize("port", [8081, 8741])
def test_clients_that_are_slow_with_a_head_or_send_too_much_of_it_are_closed(
    balanced: str, host: str, port: int
) -> None:
    """`graft_header_timeout` and `graft_max_headers` hold at the control API alone."""
    for sent, status in ((b"x: y\r\n", b"408"), (b"x: " + b"y" * 70_000, b"400")):
        with socket.create_connection((host, port), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\n" + sent)
            assert client.recv(1000).split()[1] == status
            assert client.recv(1000) == b""


def test_if_no_proxy_is_ready_any_of_them_is_asked(balanced: str, host: str, redis: int) -> None:
    def post() -> httpx2.Response:
        body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        url = f"{balanced}/@anyone{MODEL_PATH}:generateContent"
        return httpx2.post(url, json=body, headers={"x-goog-api-key": "a-secret-key"}, timeout=30)

    with servers.stopped(redis):
        control = f"http://{host}:8741/healthz/live"
        until(lambda: "No server is available" in httpx2.get(control, timeout=30).text, "no proxy is ready")
        got = post()
        assert (got.status_code, got.json()["error"]["status"]) == (503, "UNAVAILABLE"), "the proxy's own answer"
    until(lambda: httpx2.get(control, timeout=30).status_code == 200, "both are ready")
    assert post().status_code == 200
