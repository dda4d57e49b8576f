"""Web pages are refused: a foreign Origin, a cross-site request, a foreign Host; nothing goes upstream."""

import socket

import httpx2
import pytest

from tests.e2e.proxies import Proxy, Session, user
from tests.e2e.upstreams import Gemini, read_message

PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"
KEY = {"x-goog-api-key": "a-secret-key"}
BODY = {"contents": [user("hello")]}

FOREIGN = [
    pytest.param({"origin": "https://evil.example"}, id="foreign-origin"),
    pytest.param({"origin": "null"}, id="opaque-origin"),
    pytest.param({"origin": "http://127.0.0.1.evil.example"}, id="look-alike-origin"),
    pytest.param({"origin": "http://localhost:3000"}, id="another-local-port"),
    pytest.param({"sec-fetch-site": "cross-site"}, id="cross-site"),
    pytest.param({"sec-fetch-site": "same-site"}, id="same-site"),
    pytest.param({"host": "evil.example"}, id="foreign-host"),
    pytest.param({"host": "localhost.evil.example:8081"}, id="look-alike-host"),
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("prefix", ["", "/@{}"])
def test_the_reverse_port_refuses_it(
    headers: dict[str, str], prefix: str, proxy: Proxy, session: Session, gemini: Gemini
) -> None:
    url = proxy.url + prefix.format(session.name) + PATH
    answer = httpx2.post(url, json=BODY, headers=KEY | headers)
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"]["status"] == "PERMISSION_DENIED"
    assert "access-control-allow-origin" not in answer.headers
    assert gemini.requests == []
    assert session.turns() == []


@pytest.mark.parametrize("headers", [case for case in FOREIGN if case.id not in ("foreign-host", "look-alike-host")])
def test_the_regular_port_refuses_it(headers: dict[str, str], proxy: Proxy, gemini: Gemini) -> None:
    with httpx2.Client(proxy=f"http://{proxy.address}") as client:
        url = f"http://generativelanguage.googleapis.com{PATH}"
        assert client.post(url, json=BODY, headers=KEY | headers).status_code == 403
    assert gemini.requests == []


@pytest.mark.parametrize("headers", FOREIGN)
def test_the_control_api_refuses_it_even_with_the_token(headers: dict[str, str], proxy: Proxy) -> None:
    answer = proxy.control.http.get("/v1/sessions", headers=headers)
    assert answer.status_code == 403, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:1"},
        {"host": "localhost:1", "origin": "http://localhost:1", "sec-fetch-site": "same-origin"},
    ],
)
def test_programs_and_its_own_pages_are_served(headers: dict[str, str], proxy: Proxy, gemini: Gemini) -> None:
    answer = httpx2.post(proxy.url + PATH, json=BODY, headers=KEY | headers)
    assert answer.status_code == 200, answer.text
    assert len(gemini.requests) == 1


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "Basic eDp4"])
@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/calls", "/v1/events", "/v1/nothing"])
def test_the_control_api_tells_nothing_without_its_token(given: str | None, path: str, proxy: Proxy) -> None:
    headers = {"authorization": given} if given else {}
    answer = httpx2.get(proxy.control.url + path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert proxy.control.token not in answer.text
    assert answer.json()["detail"] == "a bearer token is needed: `./run_proxy.sh token` or `toolgraft token` shows it"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
@pytest.mark.parametrize("way", ["plain", pytest.param("CONNECT", marks=pytest.mark.smoke)])
def test_the_proxy_does_not_forward_to_its_own_control_api(way: str, host: str, proxy: Proxy) -> None:
    status, body = through(proxy, way, host)
    assert status == 403
    assert "own control API" in body


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001"])
@pytest.mark.parametrize("way", ["plain", "CONNECT"])
def test_other_spellings_of_this_machine_do_not_get_there_either(way: str, host: str, proxy: Proxy) -> None:
    status, body = through(proxy, way, host)
    assert status == 502
    assert "own control API" in body


def through(proxy: Proxy, way: str, host: str) -> tuple[int, str]:
    """What the regular proxy answers to a request for the control API under a name of this machine."""
    where = f"{host}:{httpx2.URL(proxy.control.url).port}"
    rest = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {proxy.control.token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(proxy.address.partition(":")[2])), 10) as connection:
        if way == "plain":
            connection.sendall(f"GET http://{where}/v1/sessions{rest}".encode())
            answer = read_message(connection).decode()
        else:
            connection.sendall(f"CONNECT {where}{rest}".encode())
            answer = read_message(connection).decode()
            if " 200 " in answer:  # nothing is connected before the first request: it is refused
                connection.sendall(f"GET /v1/sessions{rest}".encode())
                answer = read_message(connection).decode()
    return int(answer.split()[1]), answer
