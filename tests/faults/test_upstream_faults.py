"""What an upstream that misbehaves comes to: for the client of a loop, in its first and in a later round, for one of a
session whose calls are placeholders, or that has no tools, and for a caller of a front door. Never more than a client
without the proxy has of it."""

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from addon.loop import pauses
from store.models import Policy
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.harness import GOOGLE
from tests.hooks.proxied import Proxied, answer, read_message
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

PATH = "/v1beta/models/gemini-3-flash:generateContent"
STREAM = PATH.replace("generateContent", "streamGenerateContent")
PATHS = {"JSON": PATH, "SSE": f"{STREAM}?alt=sse", "array": STREAM}
TOOLS = '''
async def lookup() -> str:
    """Look it up."""
    return "found"
'''

Json = dict[str, Any]


def event_of(part: Json, finish: str = "STOP") -> bytes:
    candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, "finishReason": finish}
    return json.dumps({"candidates": [candidate]}).encode()


def framed(document: bytes, head: bytes) -> tuple[bytes, str]:
    """As the request with this head asks for it."""
    if b"alt=sse" in head:
        return b"data: " + document + b"\r\n\r\n", "text/event-stream"
    return b"[" + document + b"]" if b":streamGenerateContent" in head else document, "application/json"


class Play(NamedTuple):
    """The bytes of an answer, and how the connection goes on."""

    sent: bytes
    end: str = "close"  # or "reset", "stall", "keep"


def plain(body: bytes, kind: str) -> bytes:
    return answer(body, kind)


def length(number: int, body: bytes, kind: str) -> bytes:
    """An answer that says it has so many bytes more than it has."""
    return answer(body, kind).replace(b"content-length: %d" % len(body), b"content-length: %d" % (len(body) + number))


def chunked(body: bytes, kind: str, end: bytes = b"0\r\n\r\n", *more: str) -> bytes:
    head = ["HTTP/1.1 200 OK", f"content-type: {kind}", "transfer-encoding: chunked", *more, "", ""]
    return "\r\n".join(head).encode() + b"%x\r\n%b\r\n" % (len(body), body) + end


HTML = b"<html><title>Bad gateway</title></html>"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n"
PLAYS: dict[str, Callable[[bytes, str], Play]] = {
    "resets before the head": lambda body, kind: Play(b"", "reset"),
    "closes before the head": lambda body, kind: Play(b""),
    "closes in the head": lambda body, kind: Play(b"HTTP/1.1 200 OK\r\nconte"),
    "resets in the body": lambda body, kind: Play(plain(body, kind)[:-20], "reset"),
    "half an event": lambda body, kind: Play(chunked(body[:-20], kind), "keep"),
    "too short": lambda body, kind: Play(length(20, body, kind)),
    "cut between chunks": lambda body, kind: Play(chunked(body, kind, b"")),
    "bad chunk": lambda body, kind: Play(chunked(body, kind, b"nonsense\r\n")),
    "too long": lambda body, kind: Play(plain(body, kind) + b"surplus", "keep"),
    "a second answer": lambda body, kind: Play(plain(body, kind) * 2, "keep"),
    "not compressed": lambda body, kind: Play(answer(body, kind, "content-encoding: gzip"), "keep"),
    "compressed and cut": lambda body, kind: Play(
        answer(gzip.compress(body)[:-12], kind, "content-encoding: gzip"), "keep"
    ),
    "unknown compression": lambda body, kind: Play(answer(body, kind, "content-encoding: secret"), "keep"),
    "HTML": lambda body, kind: Play(answer(HTML, "text/html"), "keep"),
    "HTML, 502": lambda body, kind: Play(answer(HTML, "text/html").replace(b"200 OK", b"502 Bad"), "keep"),
    "nothing": lambda body, kind: Play(answer(b"", kind), "keep"),
    "1xx": lambda body, kind: Play(EARLY + plain(body, kind), "keep"),
    "1xx, several": lambda body, kind: Play(EARLY * 3 + plain(body, kind), "keep"),
    "100": lambda body, kind: Play(b"HTTP/1.1 100 Continue\r\n\r\n" + plain(body, kind), "keep"),
    "trailers": lambda body, kind: Play(chunked(body, kind, b"0\r\nx-sum: 1\r\n\r\n", "trailer: x-sum"), "keep"),
    "no HTTP": lambda body, kind: Play(b"hello\r\n\r\n"),
}
STALLS: dict[str, Callable[[bytes, str], Play]] = {
    "before the head": lambda body, kind: Play(b"", "stall"),
    "in the body": lambda body, kind: Play(plain(body, kind)[:-20], "stall"),
}


class Upstream:
    """Misbehaves, once it has called a tool if it is to do so in a later round. `stalled`: how many answers are held;
    `left`: of how many of those the other side is gone. `leaves`: it is gone itself once it has called the tool."""

    server: asyncio.Server
    url: str

    def __init__(self) -> None:
        self.leaves = False
        self.play: Callable[[bytes, str], Play] | None = None
        self.later = False
        self.stalled = 0
        self.left = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head, body = await read_message(reader)
                if not head:
                    return
                part = json.loads(body)["contents"][-1]["parts"][0]
                if self.later and "functionResponse" not in part:
                    call = event_of({"functionCall": {"name": "lookup", "args": {}}, "thoughtSignature": "c2ln"})
                    if self.leaves:
                        self.server.close()
                    writer.write(answer(*framed(call, head)))
                    await writer.drain()
                    if self.leaves:
                        return
                    continue
                played = framed(event_of({"text": "done"}), head)
                play = self.play(*played) if self.play is not None else Play(answer(*played), "keep")
                writer.write(play.sent)
                await writer.drain()
                if play.end == "stall":
                    self.stalled += 1
                    await reader.read()
                    self.left += 1
                if play.end == "reset":
                    own: socket.socket = writer.get_extra_info("socket")
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                if play.end != "keep":
                    return
        except ConnectionError:
            pass
        finally:
            writer.close()


ASKED: Json = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


async def outcome(client: httpx2.AsyncClient, url: str, body: Json = ASKED, session: str = "") -> str:
    """What a client has of one answer, in a few words."""
    named = {"x-graft-session": session} if session else {}
    try:
        async with asyncio.timeout(5):
            got = await client.post(url, json=body, headers={"x-goog-api-key": "k"} | named)
    except httpx2.RequestError:
        return "broken"
    text = got.text
    assert "functionCall" not in text
    try:
        events = [event.removeprefix("data: ") for event in text.split("\r\n\r\n") if event]
        documents = [json.loads(event) for event in (events if text.startswith("data: ") else [text])]
    except ValueError:
        return f"{got.status_code}, unreadable"
    last = documents[-1][-1] if isinstance(documents[-1], list) else documents[-1]
    if "error" in last:
        assert set(last["error"]) >= {"code", "message", "status"}
        assert got.status_code in (200, last["error"]["code"])
        return "error"
    ends = "finishReason" in last["candidates"][0] and got.status_code == 200
    return "whole" if ends else f"{got.status_code}, without an end"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    upstream.server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    upstream.url = f"http://127.0.0.1:{upstream.server.sockets[0].getsockname()[1]}"
    yield upstream
    upstream.server.close()
    upstream.server.abort_clients()
    await upstream.server.wait_closed()


class Expectation(NamedTuple):
    """`later`: the upstream behaves in the first round."""

    session: str = "default"
    later: bool = False
    tools: bool = True
    door: bool = False

    async def outcome(self, proxied: Proxied, framing: str) -> str:
        async with proxied.client() as client:
            if not self.door:
                return await outcome(client, proxied.reverse + PATHS[framing], session=self.session)
            asked: Json = {"model": "gemini-3-flash", "input": "hi", "stream": framing == "SSE"}
            assert proxied.runtime._server is not None
            return await outcome(client, f"{proxied.runtime._server.url}/v1/gemini", asked, self.session)


WAYS = {
    "a first round": Expectation(),
    "a later round": Expectation(later=True),
    "a placeholder": Expectation("by-hand"),
    "no tools": Expectation(tools=False),
    "a front door's first round": Expectation(door=True),
    "a front door's later round": Expectation(door=True, later=True),
}
CASES = [(way, framing) for way in WAYS for framing in PATHS if framing != "array" or not WAYS[way].door]

STRICTER = ("compressed and cut", "unknown compression")
"""httpx takes the bytes as they come, or until there are no more; here it is an error where somebody has to read it."""


@pytest.fixture
async def proxied(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, way: str
) -> AsyncIterator[Proxied]:
    monkeypatch.setattr(pauses, "_FIRST_PAUSE", 0.001)
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    graft: Json = {"tools": [str(file)]} if WAYS[way].tools else {}
    if WAYS[way].door:
        graft |= {"control": "127.0.0.1:0", "token": "off"}
    async with Proxied(tmp_path, upstream.url, redirect=[f"{GOOGLE}={upstream.url}"], **graft) as proxied:
        await proxied.runtime.store.put_policy("by-hand", Policy(delivery="placeholder"))
        yield proxied


@pytest.mark.parametrize(("way", "framing"), CASES)
async def test_a_client_has_what_it_would_have_directly_or_an_error(
    proxied: Proxied, upstream: Upstream, way: str, framing: str
) -> None:
    table: dict[str, tuple[str, str]] = {}
    for name, play in PLAYS.items():
        upstream.play, upstream.later = play, False
        async with proxied.client() as client:
            direct = await outcome(client, upstream.url + PATHS[framing])
        upstream.later = WAYS[way].later
        table[name] = direct, await WAYS[way].outcome(proxied, framing)
        await until(lambda: is_idle(proxied))
    upstream.leaves = WAYS[way].later
    if not WAYS[way].later:
        upstream.server.close()
        upstream.server.abort_clients()
    table["refuses"] = "broken", await WAYS[way].outcome(proxied, framing)
    await until(lambda: is_idle(proxied))
    wrong = {name: found for name, found in table.items() if not _fits(WAYS[way], name, *found)}
    assert not wrong
    assert sum(got == "whole" for name, (_, got) in table.items() if name not in STRICTER) == 6


def is_idle(proxied: Proxied) -> bool:
    return not proxied.runtime.loops and not proxied.runtime.active_requests


def _fits(way: Expectation, name: str, direct: str, got: str) -> bool:
    if direct == "whole":
        return got == ("error" if name in STRICTER and way.tools else "whole")
    return got in ("error", direct)


@pytest.mark.parametrize(("way", "framing"), CASES)
async def test_an_upstream_that_stalls_is_left_when_the_client_leaves(
    proxied: Proxied, upstream: Upstream, way: str, framing: str
) -> None:
    upstream.later = WAYS[way].later
    for number, play in enumerate(STALLS.values(), 1):
        upstream.play = play
        asking = asyncio.ensure_future(WAYS[way].outcome(proxied, framing))
        await until(lambda number=number: upstream.stalled == number)  # type: ignore[misc]
        assert not asking.done()
        asking.cancel()
        await asyncio.wait({asking})
        await until(lambda number=number: upstream.left == number and is_idle(proxied))  # type: ignore[misc]
        upstream.play = None
        assert await WAYS[way].outcome(proxied, framing) == "whole"
