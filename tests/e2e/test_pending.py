"""Requests whose last step has no results yet: `pass`, `wait` and `block`; clients that hang up."""

import base64
import json
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes

from tests.e2e import chats
from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, Session, model, sse, text_of, user, weather
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

THREE = "gemini-3-flash-preview"
HOST = "generativelanguage.googleapis.com"
PATH = f"/v1beta/models/{THREE}:"
KEY = {"x-goog-api-key": "a-secret-key"}
WORDS = user("weather in Paris")


@pytest.fixture
def url(proxy: Proxy, session: Session) -> str:
    return f"{proxy.url}/@{session.name}{PATH}"


def begin(url: str) -> list[Json]:
    """A history whose last step has no result."""
    answer = httpx2.post(f"{url}generateContent", json={"contents": [WORDS]}, headers=KEY)
    return [WORDS, model(text_of(answer.json())), user("repeat the results")]


def ledger_hits(proxy: Proxy) -> float:
    return proxy.control.metric("toolgraft_ledger_hits_total")


@pytest.mark.parametrize(
    "method",
    [
        "generateContent",
        "streamGenerateContent?alt=sse",
        pytest.param("streamGenerateContent", marks=pytest.mark.smoke),
    ],
)
def test_wait_answers_when_the_result_is_there(
    method: str, url: str, proxy: Proxy, session: Session, gemini: Gemini
) -> None:
    history = begin(url)
    session.policy(on_pending="wait")
    hits = ledger_hits(proxy)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx2.post, url + method, json={"contents": history}, headers=KEY, timeout=30)
        until(lambda: ledger_hits(proxy) > hits, "the request is looked up")
        assert not waiting.done()
        assert len(gemini.requests) == 1
        session.answer(get_weather=weather)
        answer = waiting.result(30)
    found = sse(answer.text) if method.endswith("sse") else answer.json()
    assert text_of(found) == 'get_weather returned {"city": "Paris", "celsius": 5}.'
    assert len(gemini.requests) == 2
    assert gemini.errors == []


def raw_request(session: Session, contents: list[Json], host: str, prefix: str) -> bytes:
    request = httpx2.Request("POST", f"http://{host}{prefix}{PATH}generateContent", json={"contents": contents})
    head = f"POST {prefix}{PATH}generateContent HTTP/1.1\r\nHost: {host}\r\nx-goog-api-key: {KEY['x-goog-api-key']}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(request.content)}\r\n\r\n"
    return head.encode() + request.content


def plain(proxy: Proxy, session: Session) -> tuple[socket.socket, str, str]:
    """A connection to the reverse port, the Host and the prefix that go with it."""
    port = httpx2.URL(proxy.url).port
    assert port is not None
    return socket.create_connection(("127.0.0.1", port), 10), f"127.0.0.1:{port}", f"/@{session.name}"


def connect(proxy: Proxy, session: Session, protocols: Sequence[str] = ("http/1.1",)) -> tuple[socket.socket, str, str]:
    """A connection through CONNECT to the same."""
    host, port = proxy.address.split(":")
    tunnel = socket.create_connection((host, int(port)), 10)
    tunnel.sendall(
        f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n"
        f"Proxy-Authorization: Basic {base64.b64encode(f'{session.name}:x'.encode()).decode()}\r\n\r\n".encode()
    )
    assert b" 200 " in tunnel.recv(4096)
    trusts = ssl.create_default_context(cafile=str(proxy.ca))
    trusts.set_alpn_protocols(list(protocols))
    return trusts.wrap_socket(tunnel, server_hostname=HOST), HOST, ""


@pytest.mark.parametrize("way", [plain, connect])
def test_nothing_goes_upstream_for_a_client_that_hung_up_while_it_waited(
    way: Callable[[Proxy, Session], tuple[socket.socket, str, str]],
    url: str,
    proxy: Proxy,
    session: Session,
    gemini: Gemini,
) -> None:
    history = begin(url)
    session.policy(on_pending="wait")
    hits = ledger_hits(proxy)
    connection, host, prefix = way(proxy, session)
    with connection:
        connection.sendall(raw_request(session, history, host, prefix))
        until(lambda: ledger_hits(proxy) > hits, "the request is looked up")
        mark = proxy.process.mark()
    proxy.process.wait_for("the client hung up", after=mark)
    session.answer(get_weather=weather)
    # the next request of the chat shows that the one before has been and gone
    answer = httpx2.post(f"{url}generateContent", json={"contents": history}, headers=KEY)
    assert '"city\\": \\"Paris' in answer.text
    assert len(gemini.requests) == 2


def test_nothing_goes_upstream_for_an_http2_stream_that_was_reset_while_it_waited(
    url: str, proxy: Proxy, session: Session, gemini: Gemini
) -> None:
    """The connection stays: mitmproxy tells of the reset when the wait is over."""
    history = begin(url)
    session.policy(on_pending="wait", pending_timeout=0.5)
    hits = ledger_hits(proxy)
    secured, host, _ = connect(proxy, session, ["h2"])
    http2 = H2Connection()
    with secured:
        http2.initiate_connection()
        fields = {":method": "POST", ":scheme": "https", ":authority": host, ":path": f"{PATH}generateContent"}
        http2.send_headers(1, [*fields.items(), *KEY.items()])
        http2.send_data(1, json.dumps({"contents": history}).encode(), end_stream=True)
        secured.sendall(http2.data_to_send())
        until(lambda: ledger_hits(proxy) > hits, "the request is looked up")
        mark = proxy.process.mark()
        http2.reset_stream(1, ErrorCodes.CANCEL)
        secured.sendall(http2.data_to_send())
        proxy.process.wait_for("the client hung up", after=mark)
    assert len(gemini.requests) == 1


@pytest.mark.smoke
def test_a_request_that_waits_does_not_hold_others(url: str, proxy: Proxy, session: Session, gemini: Gemini) -> None:
    history = begin(url)
    session.policy(on_pending="wait")
    connection, host, prefix = plain(proxy, session)
    hits = ledger_hits(proxy)
    with connection:
        connection.sendall(raw_request(session, history, host, prefix))
        until(lambda: ledger_hits(proxy) > hits, "the request is looked up")
        answer = httpx2.post(f"{url}generateContent", json={"contents": [user("2 + 2?")]}, headers=KEY)
        assert text_of(answer.json()) == "2 + 2 = 4."


@pytest.mark.parametrize("client", ["python", "node"])
def test_a_blocked_chat_goes_on_when_the_result_is_there(
    client: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    """Repeated placeholders are one step, told once."""
    session.policy(on_pending="block")
    make = chats.python if client == "python" else chats.node
    with make(tmp_path, "stream", model=THREE, key="k", base_url=f"{proxy.url}/@{session.name}") as chat:
        placeholder = chat.say("weather in Paris")
        assert [chat.say(words) for words in ("go on", "well?")] == [placeholder, placeholder]
        assert len(gemini.requests) == 1
        session.answer(get_weather=weather)
        assert chat.say("repeat the results") == 'get_weather returned {"city": "Paris", "celsius": 5}.'
    assert gemini.errors == []
    contents = gemini.last["body"]["contents"]
    assert "Tool call completed" not in str(contents)
    assert [part["text"] for content in contents for part in content["parts"] if "text" in part] == [
        "weather in Paris",
        "go on",
        "well?",
        "repeat the results",
    ]
    assert gemini.dummy_signatures == 0
