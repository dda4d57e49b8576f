"""An upstream that fails in a loop: its request is retried if that is safe, otherwise the answer becomes an error."""

import json
from typing import Any

import httpx2
import pytest

from tests.e2e.proxies import Proxy, new_session, sse, text_of, user
from tests.e2e.upstreams import END, Canned, Script, answer, chunk, chunked

PATH = "/v1beta/models/gemini-3-flash-preview"
STREAM = "streamGenerateContent?alt=sse"
METHODS = ["generateContent", STREAM]

Json = dict[str, Any]


def document(*parts: Json, finish: str | None = "STOP") -> Json:
    candidate: Json = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "responseId": "r", "modelVersion": "m"}


CALLS = [
    document({"text": "Wait. "}, finish=None),
    document({"functionCall": {"name": "hour", "args": {}, "id": "x"}, "thoughtSignature": "AAAA"}),
]
TELLS = [document({"text": "It is "}, finish=None), document({"text": "noon."})]


def event(data: Json) -> bytes:
    return f"data: {json.dumps(data)}\r\n\r\n".encode()


def script(method: str, documents: list[Json]) -> list[bytes]:
    """A whole answer."""
    if method == STREAM:
        return [*chunked(map(event, documents), "text/event-stream", "Connection: close"), END]
    parts = [part for one in documents for part in one["candidates"][0]["content"]["parts"]]
    return [answer(json.dumps(document(*parts)).encode(), "200 OK", "application/json", "Connection: close")]


def error(status: str, code: int, word: str) -> list[bytes]:
    body = {"error": {"code": code, "message": f"It is {word}.", "status": word}}
    return [answer(json.dumps(body).encode(), f"{code} {status}", "application/json", "Connection: close")]


BUSY = error("Service Unavailable", 503, "UNAVAILABLE")


def ask(looper: Proxy, canned: Canned, method: str, *scripts: Script) -> httpx2.Response:
    canned.first = [script(method, CALLS), *scripts]
    session = new_session(looper, tools=False)
    url = f"{looper.urls[1]}/@{session.name}{PATH}:{method}"
    return httpx2.post(url, json={"contents": [user("What time is it?")]}, timeout=20)


def found(got: httpx2.Response, method: str) -> Any:
    return sse(got.text) if method == STREAM else got.json()


SHORT: dict[str, tuple[Script, ...]] = {
    "busy twice": (BUSY, BUSY),
    "too many requests": (error("Too Many Requests", 429, "RESOURCE_EXHAUSTED"),),
    "closed at once": ((),),
    "head cut": ([b"HTTP/1.1 200 OK\r\nContent-Ty"],),
    "nothing of a stream": ([*chunked([])],),
    "body cut": ([answer(b'{"candidates": [').replace(b"Length: 16", b"Length: 99")],),
}


@pytest.mark.parametrize(("failures", "method"), list(zip(SHORT.values(), METHODS * 3, strict=True)), ids=SHORT)
def test_a_short_failure_of_a_later_round_is_not_seen(
    failures: tuple[Script, ...], method: str, looper: Proxy, canned: Canned
) -> None:
    got = ask(looper, canned, method, *failures, script(method, TELLS))
    assert got.status_code == 200, got.text
    answered = found(got, method)
    assert text_of(answered) == "Wait. It is noon."
    asked = [body.partition(b"\r\n\r\n")[2] for body in canned.heard]
    assert len(asked) == 2 + len(failures)
    assert len(set(asked[1:])) == 1
    if method == STREAM:
        assert [one["candidates"][0].get("finishReason") for one in answered] == [None, None, "STOP"]


NO_CONTENT = b"HTTP/1.1 204 No Content\r\nX-Odd: as it is\r\n\r\n"
MOVED = answer(b"moved", "302 Found", "text/plain", "Location: http://elsewhere.example/", "X-Odd: as it is")
GARBLED = answer(b"not packed at all", "200 OK", "application/json", "Content-Encoding: gzip")

LASTING: dict[str, tuple[tuple[Script, ...], int, str]] = {
    "refused": ((error("Bad Request", 400, "INVALID_ARGUMENT"),), 400, "INVALID_ARGUMENT"),
    "forbidden": ((error("Forbidden", 403, "PERMISSION_DENIED"),), 403, "PERMISSION_DENIED"),
    "busy for long": ((BUSY, BUSY, BUSY), 503, "UNAVAILABLE"),
    "gone": (((), (), ()), 503, "UNAVAILABLE"),
    "no content": (([NO_CONTENT],), 502, "UNAVAILABLE"),
    "moved": (([MOVED],), 502, "UNAVAILABLE"),
    "garbled": (([GARBLED], [GARBLED], [GARBLED]), 502, "UNAVAILABLE"),
}


@pytest.mark.parametrize(
    ("failures", "code", "word", "method"),
    [(*case, METHODS[number % 2]) for number, case in enumerate(LASTING.values())],
    ids=LASTING,
)
def test_a_lasting_failure_of_a_later_round_is_an_error_in_the_form_of_the_answer(
    failures: tuple[Script, ...], code: int, word: str, method: str, looper: Proxy, canned: Canned
) -> None:
    got = ask(looper, canned, method, *failures)
    answered = found(got, method)
    if method == STREAM:
        assert got.status_code == 200
        assert text_of(answered[:-1]) == "Wait. "
        answered = answered[-1]
    else:
        assert got.status_code == code
        assert got.headers["content-type"].startswith("application/json")
    assert (answered["error"]["code"], answered["error"]["status"]) == (code, word)
    assert len(canned.heard) == 1 + len(failures)


@pytest.mark.parametrize(
    ("says", "status", "body", "method"),
    [(NO_CONTENT, 204, b"", METHODS[0]), (MOVED, 302, b"moved", METHODS[1])],
)
def test_a_status_that_is_neither_answer_nor_error_reaches_the_client_in_the_first_round(
    says: bytes, status: int, body: bytes, method: str, looper: Proxy, canned: Canned
) -> None:
    session = new_session(looper, tools=False)
    canned.says = [says]
    url = f"{looper.urls[1]}/@{session.name}{PATH}:{method}"
    with httpx2.Client(timeout=20) as client:
        for _ in range(2):  # what is behind it on the connection is not taken for its body
            got = client.post(url, json={"contents": [user("What time is it?")]})
            assert (got.status_code, got.content, got.headers["x-odd"]) == (status, body, "as it is")


def test_a_first_stream_that_breaks_off_breaks_off_at_the_client(looper: Proxy, canned: Canned) -> None:
    session = new_session(looper, tools=False)
    canned.says = [*chunked([event(TELLS[0])])]
    url = f"{looper.urls[1]}/@{session.name}{PATH}:{STREAM}"
    with httpx2.stream("POST", url, json={"contents": [user("Hello")]}, timeout=20) as stream:
        pieces = stream.iter_text()
        assert text_of(sse(next(pieces))) == "It is "
        with pytest.raises(httpx2.RemoteProtocolError):
            next(pieces)


def test_a_connection_that_breaks_in_the_middle_of_an_event_ends_the_stream_with_an_error(
    looper: Proxy, canned: Canned
) -> None:
    broken = [*chunked([]), chunk(event(TELLS[0])), chunk(event(TELLS[1])[:30])]
    *events, last = sse(ask(looper, canned, STREAM, broken).text)
    assert text_of(events) == "Wait. It is "
    assert last["error"]["code"] == 503


def test_cookies_for_one_caller_are_not_sent_with_the_next_caller_s_request(looper: Proxy, canned: Canned) -> None:
    body = json.dumps(TELLS[1]).encode()
    canned.says = [answer(body, "200 OK", "application/json", "Set-Cookie: id=of-the-first; Path=/")]
    for _ in range(2):
        session = new_session(looper, tools=False)
        url = f"{looper.urls[1]}/@{session.name}{PATH}:generateContent"
        got = httpx2.post(url, json={"contents": [user("Hello")]}, timeout=20)
        assert got.headers["set-cookie"] == "id=of-the-first; Path=/"
    assert len(canned.heard) == 2
    assert not any(b"of-the-first" in request for request in canned.heard)


def test_a_request_has_the_headers_that_the_client_gave_it(looper: Proxy, canned: Canned) -> None:
    canned.says = script("generateContent", TELLS)
    session = new_session(looper, tools=False)
    with httpx2.Client(timeout=20) as client:
        client.headers.clear()
        url = f"{looper.urls[1]}/@{session.name}{PATH}:generateContent"
        headers = {"content-type": "application/json", "x-goog-api-key": "k"}
        client.post(url, json={"contents": [user("Hello")]}, headers=headers).raise_for_status()
    head = canned.heard[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    sent = dict(line.lower().split(": ", 1) for line in head)
    assert sent.keys() == {"host", "content-type", "content-length", "x-goog-api-key", "accept-encoding"}
    assert sent["accept-encoding"] == "identity"
