"""What an upstream that misbehaves comes to, in each API and framing: for the client of a loop, in its first and in a
later round, for one of a session whose calls are placeholders, or that has no tools, and for a caller of a front door.
Never more than a client without the proxy has of it."""

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from addon.loop import upstream as upstream_module
from store.models import Policy
from tests.faults.dialects import COMPLETIONS, DOORS, GEMINI, INTERACTIONS, Call, Dialect, dialect_of, is_later_round
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.harness import GOOGLE
from tests.hooks.proxied import Proxied, answer, closing, requests
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

TOOLS = '''
async def lookup() -> str:
    """Look it up."""
    return "found"
'''


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
    port = 0

    def __init__(self) -> None:
        self.leaves = False
        self.play: Callable[[bytes, str], Play] | None = None
        self.later = False
        self.stalled = 0
        self.left = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self.server = await asyncio.start_server(closing(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.server.close()
        self.server.abort_clients()
        await self.server.wait_closed()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for head, body in requests(reader):
            path = head.split(b" ", 2)[1].decode()
            dialect = dialect_of(path)
            framing = dialect.framing(path, body)
            if self.later and not is_later_round(body):
                if self.leaves:
                    self.server.close()
                writer.write(answer(*dialect.answer(framing, Call("lookup"))))
                await writer.drain()
                if self.leaves:
                    return
                continue
            played = dialect.answer(framing, "done")
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


async def outcome(client: httpx2.AsyncClient, base: str, dialect: Dialect, framing: str, session: str = "") -> str:
    """What a client has of one answer, in a few words."""
    named = {"x-goog-api-key": "k"} | ({"x-graft-session": session} if session else {})
    try:
        async with asyncio.timeout(5):
            got = await client.post(base + dialect.paths[framing], json=dialect.request(framing), headers=named)
    except httpx2.RequestError:
        return "broken"
    return dialect.outcome(got.status_code, got.text).how


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    await upstream.open()
    yield upstream
    await upstream.close()


class Expectation(NamedTuple):
    """`later`: the upstream behaves in the first round."""

    dialect: Dialect
    session: str = "default"
    later: bool = False
    tools: bool = True

    @property
    def loops(self) -> bool:
        return self.tools and self.session == "default"

    async def outcome(self, proxied: Proxied, framing: str) -> str:
        base = proxied.reverse
        if self.dialect.is_door:
            assert proxied.runtime._server is not None
            base = proxied.runtime._server.url
        async with proxied.client() as client:
            return await outcome(client, base, self.dialect, framing, self.session)


WAYS: dict[str, Expectation] = {}
for dialect in (GEMINI, COMPLETIONS, INTERACTIONS, *DOORS):  # Code Assist's answers are Gemini's
    WAYS[f"{dialect.name}, a first round"] = Expectation(dialect)
    WAYS[f"{dialect.name}, a later round"] = Expectation(dialect, later=True)
    if not dialect.is_door:
        WAYS[f"{dialect.name}, a placeholder"] = Expectation(dialect, "by-hand")
        WAYS[f"{dialect.name}, no tools"] = Expectation(dialect, tools=False)

BROKEN_EVENT = "200, unreadable"
BEHIND_THE_MARK = ("too short", "cut between chunks", "bad chunk")
"""The plays that send every byte of the answer before the fault."""
SURPLUS = ("too long", "a second answer")
STRICTER = ("compressed and cut", "unknown compression")
"""httpx takes the bytes as they come, or until there are no more; here it is an error where somebody has to read it."""
UNREAD = ("1xx", "1xx, several", "100", "trailers")
"""mitmproxy, which sends the requests that no loop sends, reads neither interim answers nor trailers over HTTP/1.1: an
error instead of the former; after the latter the client waits until it gives up, which is not tried here."""


@pytest.fixture
async def proxied(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, way: str
) -> AsyncIterator[Proxied]:
    monkeypatch.setattr(upstream_module, "_FIRST_PAUSE", 0.001)
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    graft: dict[str, Any] = {"tools": [str(file)]} if WAYS[way].tools else {}
    if WAYS[way].dialect.is_door:
        graft |= {"control": "127.0.0.1:0", "token": "off"}
    async with Proxied(tmp_path, upstream.url, redirect=[f"{GOOGLE}={upstream.url}"], **graft) as proxied:
        await proxied.runtime.store.put_policy("by-hand", Policy(delivery="placeholder"))
        yield proxied


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_has_what_it_would_have_directly_or_an_error(
    proxied: Proxied, upstream: Upstream, way: str
) -> None:
    expected = WAYS[way]
    upstreams = GEMINI if expected.dialect.is_door else expected.dialect
    wrong: dict[tuple[str, str], tuple[str, str]] = {}
    for framing in expected.dialect.paths:
        whole = []
        # an answer of such a format is whole at its end mark, whatever follows it
        is_marked = expected.tools and upstreams.answer(framing, "done").body.endswith((b"[DONE]\n\n", b"]"))
        for name, play in PLAYS.items():
            if name == "trailers" and not expected.loops:
                continue
            upstream.play, upstream.later = play, False
            async with proxied.client() as client:
                direct = await outcome(client, upstream.url, upstreams, framing)
            if is_marked and name in BEHIND_THE_MARK:
                direct = "whole"
            upstream.later = expected.later
            found = await expected.outcome(proxied, framing)
            await until(lambda: is_idle(proxied))
            whole += [name] if found == "whole" and name not in STRICTER else []
            if not _fits(expected, name, direct, found):
                wrong[framing, name] = direct, found
            for _ in range(2 if name in SURPLUS else 0):  # which may spoil the next request with the same credential
                upstream.play = None
                await expected.outcome(proxied, framing)
                await until(lambda: is_idle(proxied))
        count = (6 if expected.loops else 2) + (len(BEHIND_THE_MARK) if is_marked else 0)
        assert len(set(whole) - set(() if expected.loops else UNREAD)) == count, whole
    for framing in expected.dialect.paths:
        upstream.leaves = expected.later
        if not expected.later:
            await upstream.close()
        found = await expected.outcome(proxied, framing)
        await until(lambda: is_idle(proxied))
        if not _fits(expected, "refuses", "broken", found):
            wrong[framing, "refuses"] = "broken", found
        await upstream.close()
        await upstream.open()
    assert not wrong


def is_idle(proxied: Proxied) -> bool:
    return not proxied.runtime.loops and not proxied.runtime.active_requests


def _fits(way: Expectation, name: str, direct: str, got: str) -> bool:
    if name in UNREAD and not way.loops:
        return got in ("error", "whole")
    if direct == "whole":
        return got == ("error" if name in STRICTER and way.tools else "whole")
    if direct == BROKEN_EVENT and got == "200, without an end":
        return True  # the client has the events before it, and no end
    return got in ("error", direct)


@pytest.mark.parametrize("way", WAYS)
async def test_an_upstream_that_stalls_is_left_when_the_client_leaves(
    proxied: Proxied, upstream: Upstream, way: str
) -> None:
    upstream.later = WAYS[way].later
    cases = [(framing, play) for framing in WAYS[way].dialect.paths for play in STALLS.values()]
    for number, (framing, play) in enumerate(cases, 1):
        upstream.play = play
        asking = asyncio.ensure_future(WAYS[way].outcome(proxied, framing))
        await until(lambda number=number: upstream.stalled == number)  # type: ignore[misc]
        assert not asking.done()
        asking.cancel()
        await asyncio.wait({asking})
        await until(lambda number=number: upstream.left == number and is_idle(proxied))  # type: ignore[misc]
        upstream.play = None
        assert await WAYS[way].outcome(proxied, framing) == "whole"
