"""Upstream answers reach the client unchanged: errors, compressed answers, streams that break, and everything in
sessions without a toolset."""

import gzip
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.certificates import client_certificate, secure
from tests.e2e.proxies import GOOGLE, Proxy, Session, new_session, sse, text_of, user
from tests.e2e.upstreams import END, Canned, answer, chunk, chunked
from tests.ports import free_port

Json = dict[str, Any]

MODELS = "/v1beta/models/gemini-3-flash-preview"
METHODS = ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"]
KEY = {"x-goog-api-key": "a-secret-key"}
BODY = {"contents": [user("weather in Paris")]}
CALL = {"functionCall": {"name": "get_weather", "args": {"city": "Paris"}, "id": "x1"}, "thoughtSignature": "AAAA"}


def document(*parts: Json, **more: Any) -> Json:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **more}]}


def event(*parts: Json, **more: Any) -> bytes:
    return f"data: {json.dumps(document(*parts, **more))}\r\n\r\n".encode()


@pytest.fixture
def base(proxy: Proxy, session: Session, canned: Canned) -> str:
    """The raw server's reverse proxy, in a session that has a toolset."""
    return f"{proxy.urls[1]}/@{session.name}{MODELS}:"


def error(code: int, status: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "no", "status": status, "details": [{"a": 1}]}}).encode()


@pytest.mark.parametrize(
    ("method", "line", "body", "kind"),
    [
        (METHODS[0], "400 Bad Request", error(400, "INVALID_ARGUMENT"), "application/json; charset=UTF-8"),
        (
            METHODS[1],
            "429 Too Many Requests",
            b"[" + error(429, "RESOURCE_EXHAUSTED") + b"]",
            "application/json; charset=UTF-8",
        ),
        (METHODS[2], "503 Service Unavailable", error(503, "UNAVAILABLE"), "text/event-stream"),
        (METHODS[0], "500 Internal Server Error", b"<html>oops</html>", "text/html"),
        (METHODS[1], "404 Not Found", b"", "text/plain"),
    ],
)
def test_an_error_reaches_the_client_unchanged(
    line: str, body: bytes, kind: str, method: str, base: str, session: Session, canned: Canned
) -> None:
    canned.says = [answer(body, line, kind, "Retry-After: 7", "X-Odd: as it is")]
    got = httpx2.post(base + method, json=BODY, headers=KEY)
    assert (f"{got.status_code} {got.reason_phrase}", got.content) == (line, body)
    assert got.headers["content-type"] == kind
    assert (got.headers["retry-after"], got.headers["x-odd"]) == ("7", "as it is")
    assert session.turns() == []


def test_an_error_in_the_middle_of_a_stream_reaches_the_client(base: str, canned: Canned) -> None:
    events = [event({"text": "Let me"}), b"data: " + error(503, "UNAVAILABLE") + b"\r\n\r\n"]
    canned.says = [*chunked(events), END]
    got = httpx2.post(f"{base}streamGenerateContent?alt=sse", json=BODY, headers=KEY)
    assert got.content == b"".join(events)


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


@pytest.mark.parametrize(
    ("method", "name", "pack"),
    [(METHODS[0], "gzip", gzip.compress), (METHODS[1], "deflate", deflated), (METHODS[2], "gzip", gzip.compress)],
)
def test_a_compressed_answer_is_read_though_none_was_asked_for(
    method: str, name: str, pack: Any, base: str, session: Session, canned: Canned
) -> None:
    final = document(CALL, finishReason="STOP")
    if method.endswith("sse"):
        body, kind = event({"text": "Sure."}) + event(CALL, finishReason="STOP"), "text/event-stream"
    else:
        body = json.dumps(final if method == "generateContent" else [final]).encode()
        kind = "application/json"
    packed = pack(body)
    if method == "generateContent":
        canned.says = [answer(packed, "200 OK", kind, f"Content-Encoding: {name}")]
    else:
        pieces = [packed[n : n + 11] for n in range(0, len(packed), 11)]
        canned.says = [*chunked(pieces, kind, f"Content-Encoding: {name}"), END]
    got = httpx2.post(base + method, json=BODY, headers=KEY | {"accept-encoding": "gzip, deflate"})
    found = sse(got.text) if method.endswith("sse") else got.json()
    (call,) = session.calls()
    assert text_of(found).endswith(f"Tool call completed: get_weather [{call['turn_id']}]")
    assert b"accept-encoding: identity\r\n" in canned.heard[0].lower()


def test_a_stream_with_a_length_may_grow(base: str, session: Session, canned: Canned) -> None:
    """The placeholder is longer than the call that it replaces."""
    short = {"functionCall": {"name": "get_time"}}
    canned.says = [answer(event(short, finishReason="STOP"), "200 OK", "text/event-stream")]
    got = httpx2.post(f"{base}streamGenerateContent?alt=sse", json=BODY, headers=KEY)
    (call,) = session.calls()
    assert text_of(sse(got.text)) == f"Tool call completed: get_time [{call['turn_id']}]"


# --- how a stream's round reaches the upstream ------------------------------------------------------------------------


class Secured(Canned):
    """Serves over TLS, and only clients with this certificate."""

    def __init__(self, context: ssl.SSLContext, certificate: Path) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)
        self._context = context
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with self._context.wrap_socket(connection, server_side=True) as secured:
            super()._serve(secured)


STREAM = f"{MODELS}:{METHODS[1]}"
STREAMED_CALL = [*chunked([event({"text": "Sure."}), event(CALL, finishReason="STOP")]), END]


def check_placeholder(got: httpx2.Response, session: Session) -> None:
    (call,) = session.calls()
    assert text_of(sse(got.text)) == f"Sure.\n\nTool call completed: get_weather [{call['turn_id']}]"


def test_a_stream_is_asked_for_through_the_upstream_proxy(start: Callable[..., Proxy], canned: Canned) -> None:
    port = free_port()
    proxy = start(arguments=("--mode", f"upstream:{canned.url}@127.0.0.1:{port}"))
    session = new_session(proxy)
    canned.says = STREAMED_CALL
    through = f"http://{session.name}:x@127.0.0.1:{port}"
    got = httpx2.post(f"http://{GOOGLE[0]}{STREAM}", json=BODY, headers=KEY, proxy=through)
    check_placeholder(got, session)
    (asked,) = canned.heard
    assert asked.startswith(f"POST http://{GOOGLE[0]}{STREAM} HTTP/1.1\r\n".encode())
    assert b"get_weather" in asked


def test_a_stream_is_asked_for_with_the_client_certificate(start: Callable[..., Proxy], tmp_path: Path) -> None:
    certificate = client_certificate(tmp_path)
    with Secured(secure(tmp_path)[0], certificate) as upstream:
        upstream.says = STREAMED_CALL
        options = (f"client_certs={certificate}", "ssl_insecure=true")
        proxy = start(
            upstream.url.replace("http:", "https:"), arguments=tuple(w for one in options for w in ("--set", one))
        )
        session = new_session(proxy)
        check_placeholder(httpx2.post(f"{proxy.url}/@{session.name}{STREAM}", json=BODY, headers=KEY), session)


def broken(url: str) -> bytes:
    """What came of a stream before it broke."""
    received = b""
    with httpx2.stream("POST", url, json=BODY, headers=KEY) as stream:
        try:
            for piece in stream.iter_raw():
                received += piece
        except httpx2.RemoteProtocolError:
            return received
    pytest.fail(f"the stream came to a clean end: {received!r}")


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_stream_that_breaks_stays_broken(method: str, base: str, session: Session, canned: Canned) -> None:
    """No placeholder is made up for it; the call that was complete can still be answered."""
    if method.endswith("sse"):
        pieces, kind = [event({"text": "Sure."}), event(CALL), event({"text": "And"})], "text/event-stream"
    else:
        documents = [document({"text": "Sure."}), document(CALL), document({"text": "And"})]
        pieces = [b"[" if n == 0 else b",\r\n" for n in range(3)]
        pieces = [begin + json.dumps(one).encode() for begin, one in zip(pieces, documents, strict=True)]
        kind = "application/json"
    canned.says = list(chunked(pieces, kind))
    received = broken(base + method)
    assert b"Sure." in received
    assert b"And" in received
    assert b"functionCall" not in received
    assert b"Tool call completed" not in received
    (call,) = session.calls()
    assert call["status"] == "pending"
    (turn,) = session.turns()
    assert turn["delivered"] is False


@pytest.mark.smoke
def test_events_without_a_call_are_forwarded_byte_for_byte_and_at_once(base: str, canned: Canned) -> None:
    odd = [
        b'data: {"candidates":[{"content": {"parts":[ {"text":"a\\u00e9 \xc3\xa9"}]}}],"unknown":{"k":[1.50]}}\r\n\r\n'
    ]
    odd.append(b": a comment\n\ndata: not json\r\n\r\n")
    rest = threading.Event()
    canned.says = [*chunked(odd[:1]), rest, chunk(odd[1]), END]
    with httpx2.stream("POST", f"{base}streamGenerateContent?alt=sse", json=BODY, headers=KEY, timeout=20) as stream:
        pieces = stream.iter_raw()
        assert next(pieces) == odd[0]  # the rest is not even sent yet
        rest.set()
        assert b"".join(pieces) == odd[1]


# --- sessions without a toolset -----------------------------------------------------------------------------------

EMPTY = b'{"contents":[{"parts":[{"text":"weather"}]}],"tools":[{"functionDeclarations":[{"name":"own"}]}],  "x":1.0}'


def pieces_from(connection: socket.socket) -> Iterator[bytes]:
    while piece := connection.recv(65536):
        yield piece


@pytest.mark.parametrize(("method", "packed"), [(METHODS[0], True), (METHODS[1], False), (METHODS[2], True)])
def test_without_a_toolset_request_and_answer_are_the_same_bytes(
    method: str, packed: bool, proxy: Proxy, canned: Canned
) -> None:
    session = new_session(proxy, tools=False)
    port = httpx2.URL(proxy.urls[1]).port
    request = (
        "POST {}{}:{} HTTP/1.1\r\nHost: {}\r\naccept-Encoding: gzip;q=1, deflate\r\nX-Goog-Api-Key: k\r\n"
        "Content-type: application/json\r\nX-Twice: 1\r\nX-Twice: 2\r\nCookie: a=b\r\nContent-Length: {}\r\n\r\n"
    )
    body = (
        event({"text": "Sure."}) + event(CALL, finishReason="STOP") if "sse" in method else json.dumps([CALL]).encode()
    )
    body = gzip.compress(body, mtime=0) if packed else body
    kind = "text/event-stream" if "sse" in method else "application/json"
    more = ["content-ENCODING: gzip"] if packed else []
    whole = answer(body, "200 Fine", kind, *more, "X-Twice: a", "x-twice: b", "Set-Cookie: c=d")
    canned.says = [whole]
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        sent = request.format(f"/@{session.name}", MODELS, method, f"127.0.0.1:{port}", len(EMPTY)).encode() + EMPTY
        connection.sendall(sent)
        got = b""
        for piece in pieces_from(connection):
            got += piece
            if len(got) >= len(whole):
                break
    assert got == whole
    expected = request.format("", MODELS, method, canned.address, len(EMPTY)).encode() + EMPTY
    assert canned.heard == [expected]
    assert session.calls() == []


@pytest.mark.smoke
def test_an_empty_toolset_strips_all_the_same(proxy: Proxy, canned: Canned) -> None:
    session = new_session(proxy, tools=False)
    session.tools([])
    canned.says = [answer(b"{}")]
    url = f"{proxy.urls[1]}/@{session.name}{MODELS}:generateContent"
    httpx2.post(url, content=EMPTY, headers=KEY | {"content-type": "application/json"})
    sent = canned.heard[0].partition(b"\r\n\r\n")[2]
    assert sent == b'{"contents":[{"parts":[{"text":"weather"}]}],"x":1.0}'


@pytest.mark.smoke
def test_foreign_traffic_is_left_alone(proxy: Proxy, canned: Canned) -> None:
    """A path like a surface's on a host that is none, through the regular proxy."""
    canned.says = [answer(json.dumps(document(CALL)).encode())]
    with httpx2.Client(proxy=proxy.user("default")) as client:
        got = client.post(f"{canned.url}{MODELS}:generateContent", content=EMPTY, headers=KEY)
    assert got.json() == document(CALL)
    head, _, sent = canned.heard[0].partition(b"\r\n\r\n")
    assert sent == EMPTY
    assert b"proxy-authorization" not in head.lower()
