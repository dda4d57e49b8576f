"""Live connections below the clients: handshakes, kinds of frames, messages in pieces, and the ways they end."""

import base64
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http, io
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.e2e import lives
from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, Session, new_session
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

PATH = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
SETUP: Json = {"setup": {"model": f"models/{lives.MODEL}"}}
SECRET = "a-secret-key-of-a-live-client"


def url_of(proxy: Proxy, session: Session, path: str = PATH) -> str:
    return f"{proxy.url.replace('http', 'ws', 1)}/@{session.name}{path}?key={SECRET}"


@contextmanager
def opened(proxy: Proxy, session: Session, path: str = PATH, **how: Any) -> Iterator[ClientConnection]:
    """A connection after its setup."""
    with connect(url_of(proxy, session, path), proxy=None, max_size=None, **how) as made:
        made.send(json.dumps(SETUP))
        assert json.loads(made.recv(30)) == {"setupComplete": {}}
        yield made


def words(text: str, *, complete: bool = True) -> str:
    turn = {"role": "user", "parts": [{"text": text}]}
    return json.dumps({"clientContent": {"turns": [turn], "turnComplete": complete}}, ensure_ascii=False)


def pending(session: Session) -> Json:
    (call,) = until(lambda: session.calls(status="pending"), "a call waits")
    found: Json = call
    return found


def answer(proxy: Proxy, call: Json, result: Any = "fine") -> None:
    proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/result", json={"result": result})


def arrived(gemini: Gemini) -> list[Json]:
    """What the service has got of the last connection, without the setup."""
    assert gemini.errors == []
    found: list[Json] = gemini.last["body"][1:]
    return found


def status(session: Session) -> str:
    (call,) = session.calls()
    return str(call["status"])


CALL = 'call get_time {"zone": "CET"}'


@pytest.mark.parametrize("compression", ["deflate", None])
def test_frames_keep_their_kind_whether_they_pass_or_are_held(
    proxy: Proxy, session: Session, gemini: Gemini, compression: str | None
) -> None:
    def video(kind: type) -> Any:
        data = base64.b64encode(os.urandom(300_000)).decode()
        text = json.dumps({"realtimeInput": {"video": {"data": data, "mimeType": "image/png"}}})
        return text if kind is str else text.encode()

    given = [video(str), video(bytes), words("日本語" * 5000, complete=False), video(bytes)]
    with opened(proxy, session, compression=compression) as made:
        for one in given:
            made.send(one)
        made.send(words(CALL))
        call = pending(session)
        for one in given:
            made.send(one)
        assert made.ping().wait(30), "the proxy has read them all"
        answer(proxy, call)
        made.send(words("the end"))
        until(lambda: b"the end" in made.recv(30, decode=False), "the end is answered")
    frames = arrived(gemini)
    kinds = [isinstance(one, str) for one in given]
    assert [frame["text"] for frame in frames] == [*kinds, True, True, *kinds, True]
    messages = [json.loads(one) for one in given]
    assert [frame["message"] for frame in frames[:4]] == messages
    assert list(frames[5]["message"]) == ["toolResponse"]
    assert [frame["message"] for frame in frames[6:10]] == messages


def test_an_answer_that_is_sent_in_the_middle_of_a_message_of_the_clients_spoils_neither(
    proxy: Proxy, session: Session, gemini: Gemini
) -> None:
    with raw(proxy, session) as wire:
        wire.sendall(masked(json.dumps(SETUP).encode()))
        wire.sendall(masked(words(CALL).encode()))
        call = pending(session)
        long = words("long " * 30_000, complete=False)
        frame = masked(long.encode())
        wire.sendall(frame[:70_000])
        answer(proxy, call)
        until(lambda: len(arrived(gemini)) == 2, "the answer is there")
        wire.sendall(frame[70_000:])
        until(lambda: len(arrived(gemini)) == 3, "the message is there")
    _, response, last = (one["message"] for one in arrived(gemini))
    assert response["toolResponse"]["functionResponses"][0]["response"] == {"result": "fine"}
    assert last == json.loads(long)


def test_a_message_of_several_frames_is_read_as_one(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    setup = json.dumps(SETUP)
    with connect(url_of(proxy, session), proxy=None) as made:
        made.send([setup[:9], setup[9:20], setup[20:]])
        assert json.loads(made.recv(30)) == {"setupComplete": {}}
        made.send(words("hello").partition("hello"))
        assert b"hello" in made.recv(30, decode=False)
    assert "get_weather" in json.dumps(gemini.last["body"][0])


def test_a_handshake_that_the_service_refuses_is_the_clients_to_see(proxy: Proxy, session: Session) -> None:
    url = url_of(proxy, session).replace(SECRET, "bad")
    with pytest.raises(InvalidStatus) as refused, connect(url, proxy=None):
        pass
    assert refused.value.response.status_code == 400
    assert b"API_KEY_INVALID" in (refused.value.response.body or b"")


def test_the_service_s_reason_for_closing_reaches_the_client(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    with opened(proxy, session) as made:
        made.send(words(CALL))
        pending(session)
        made.send('{"toolResponse": {"functionResponses": [{"id": "none", "response": {}}]}}')
        with pytest.raises(ConnectionClosed) as closed:
            made.recv(30)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "Requested entity was not found.")
    until(lambda: status(session) == "expired", "the call has expired")


def test_a_client_that_vanishes_leaves_no_call_behind(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    with raw(proxy, session) as wire:
        wire.sendall(masked(json.dumps(SETUP).encode()))
        wire.sendall(masked(words(CALL).encode()))
        call = pending(session)
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    until(lambda: status(session) == "expired", "the call has expired")
    proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/result", 409, json={"result": "late"})
    assert [next(iter(frame["message"])) for frame in arrived(gemini)] == ["clientContent"]


def test_a_connection_is_recorded_without_its_key(start: Callable[..., Proxy], strict: Gemini, tmp_path: Path) -> None:
    file = tmp_path / "live.mitm"
    proxy = start(strict.url, record=str(file), arguments=("--flow-detail", "3"))
    session = new_session(proxy)
    with opened(proxy, session, additional_headers={"x-goog-api-key": SECRET}) as made:
        made.send(words(CALL))
        answer(proxy, pending(session))
        made.recv(30)
    until(lambda: file.exists() and file.stat().st_size, "the flow is written")
    proxy.stop()
    assert SECRET.encode() not in file.read_bytes()
    assert SECRET not in proxy.log
    with file.open("rb") as saved:
        (flow,) = io.FlowReader(saved).stream()
    assert isinstance(flow, http.HTTPFlow)
    assert flow.websocket is not None
    up = [message.content for message in flow.websocket.messages if message.from_client and not message.dropped]
    assert b"get_time" in up[0]
    assert b"toolResponse" in up[-1]
    assert flow.request.path.endswith("?key=REMOVED")


def test_an_orderly_end_of_the_proxy_ends_its_calls(start: Callable[..., Proxy], strict: Gemini) -> None:
    proxy = start(strict.url)
    session = new_session(proxy)
    with connect(url_of(proxy, session), proxy=None) as made:
        made.send(json.dumps(SETUP))
        made.send(words(CALL))
        pending(session)
        proxy.restart()
    restarted = proxy.control.session(session.name)
    assert status(restarted) == "expired"


# --- a WebSocket by hand --------------------------------------------------------------------------------------


@contextmanager
def raw(proxy: Proxy, session: Session) -> Iterator[socket.socket]:
    """A connection after its handshake, whose frames are the test's to cut."""
    host, _, port = proxy.url.removeprefix("http://").partition(":")
    head = [
        f"GET /@{session.name}/{PATH}?key={SECRET} HTTP/1.1",
        *(f"Host: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
    ]
    with socket.create_connection((host, int(port)), 30) as made:
        made.sendall("\r\n".join([*head, "", ""]).encode())
        got = b""
        while b"\r\n\r\n" not in got:
            got += made.recv(1)
        assert got.startswith(b"HTTP/1.1 101"), got
        yield made


def masked(data: bytes) -> bytes:
    """A text frame as clients send it; the mask is all zeros."""
    if len(data) < 126:
        size = struct.pack("!B", 0x80 | len(data))
    elif len(data) <= 0xFFFF:
        size = struct.pack("!BH", 0x80 | 126, len(data))
    else:
        size = struct.pack("!BQ", 0x80 | 127, len(data))
    return b"\x81" + size + bytes(4) + data


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_client_s_result_for_a_call_that_it_did_not_get_stays_with_the_proxy(
    proxy: Proxy, session: Session, gemini: Gemini, kind: type
) -> None:
    with opened(proxy, session) as made:
        made.send(words(CALL))
        call = pending(session)
        forged = {"id": call["gemini_id"], "name": call["name"], "response": {"result": "forged"}}
        text = json.dumps({"tool_response": {"function_responses": [forged]}})
        made.send(text if kind is str else text.encode())
        assert made.ping().wait(30), "the proxy has read it"
        answer(proxy, call)
        until(lambda: b"fine" in made.recv(30, decode=False), "the proxy's own result is told")
    (result,) = [frame["message"]["toolResponse"] for frame in arrived(gemini) if "toolResponse" in frame["message"]]
    assert result["functionResponses"][0]["response"] == {"result": "fine"}
