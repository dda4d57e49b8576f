"""The end of a loop if something fails around it: an upstream that closes reused connections, breaks off after its last
words, or does not speak Gemini."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.proxies import TOOLS, Proxy, Session, new_session, text_of, user
from tests.e2e.test_loop_upstream import CALLS, METHODS, PATH, STREAM, TELLS, event, found, script
from tests.e2e.upstreams import Canned, Script, answer, chunked, read_message

Json = dict[str, Any]

KEY = {"x-goog-api-key": "a-secret-key"}
NOON = "Wait. It is noon."


def post(looper: Proxy, session: Session, method: str, *contents: Json) -> httpx2.Response:
    """A request to the server of raw bytes."""
    url = f"{looper.urls[1]}/@{session.name}{PATH}:{method}"
    return httpx2.post(url, json={"contents": list(contents)}, headers=KEY, timeout=20)


def body_of(request: bytes) -> Json:
    loaded: Json = json.loads(request.partition(b"\r\n\r\n")[2])
    return loaded


# --- an upstream that closes a connection as it is used again ---------------------------------------------------


class Closing(Canned):
    """Keeps each connection, and closes it without a word when a second request has come over it."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    def _serve(self, connection: socket.socket) -> None:
        super()._serve(connection)
        connection.settimeout(30)
        if read_message(connection):
            self.closed += 1


@pytest.fixture
def closing(tmp_path: Path, start: Callable[..., Proxy]) -> Iterator[tuple[Closing, Proxy]]:
    with Closing() as upstream:
        yield upstream, start(upstream.url, tools=str(TOOLS))


def keeping(method: str, documents: list[Json]) -> list[bytes]:
    """A whole answer that leaves the connection open."""
    return [piece.replace(b"Connection: close\r\n", b"") for piece in script(method, documents)]


@pytest.mark.parametrize("method", METHODS)
def test_a_kept_connection_that_the_upstream_closes_as_it_is_used_again_is_a_502_in_the_first_round_only(
    method: str, closing: tuple[Closing, Proxy]
) -> None:
    """The upstream may have processed the request, so it is the client that decides; later rounds are retried."""
    upstream, proxy = closing
    url = f"{proxy.url}{PATH}:{method}"
    upstream.says = keeping(method, TELLS)
    assert httpx2.post(url, json={"contents": [user("Hello")]}, headers=KEY, timeout=20).status_code == 200
    upstream.first = [keeping(method, CALLS), keeping(method, TELLS)]
    refused, got = (
        httpx2.post(url, json={"contents": [user("What time is it?")]}, headers=KEY, timeout=20) for _ in range(2)
    )
    assert (refused.status_code, got.status_code) == (502, 200), got.text
    assert text_of(found(got, method)) == NOON
    assert upstream.closed == 2, "in the first round of the second request, and in the second round of the third"
    assert len(upstream.heard) == 3
    (call,) = proxy.control.session("default").calls()
    assert call["status"] == "done"


# --- what comes after the last words ----------------------------------------------------------------------------


def check_told(looper: Proxy, session: Session, canned: Canned, method: str = "generateContent") -> None:
    """The next request of the chat tells the call and its result."""
    canned.forget()
    canned.says = script(method, TELLS)
    post(looper, session, method, user("What time is it?"), {"role": "model", "parts": [{"text": NOON}]}, user("And?"))
    parts = [part for content in body_of(canned.heard[0])["contents"] for part in content["parts"]]
    assert [part["functionCall"]["name"] for part in parts if "functionCall" in part] == ["hour"]
    assert [p["functionResponse"]["response"] for p in parts if "functionResponse" in p] == [{"hour": 12}]


AFTER: dict[str, Callable[[threading.Event], Script]] = {
    "held": lambda released: [*chunked(map(event, TELLS)), released],
    "cut": lambda _: [*chunked(map(event, TELLS))],
}


@pytest.mark.parametrize("ending", AFTER.values(), ids=AFTER)
def test_a_client_that_stops_reading_at_the_finish_reason_has_its_turn_stored(
    ending: Callable[[threading.Event], Script], looper: Proxy, canned: Canned
) -> None:
    """The upstream's end comes later, or never."""
    released = threading.Event()
    canned.first = [script(STREAM, CALLS), ending(released)]
    session = new_session(looper, tools=False)
    url = f"{looper.urls[1]}/@{session.name}{PATH}:{STREAM}"
    body = {"contents": [user("What time is it?")]}
    text = ""
    with httpx2.stream("POST", url, json=body, headers=KEY, timeout=20) as stream:
        for line in stream.iter_lines():
            if line:
                one = json.loads(line.removeprefix("data: "))
                text += text_of(one)
                if one["candidates"][0].get("finishReason"):
                    break
    released.set()
    assert text == NOON
    check_told(looper, session, canned)


# --- what is not Gemini's -----------------------------------------------------------------------------------------


def whole(body: bytes, kind: str) -> list[bytes]:
    return [answer(body, "200 OK", kind, "Connection: close")]
