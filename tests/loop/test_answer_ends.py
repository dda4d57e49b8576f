"""Where an upstream answer ends while its connection stays open: the next round begins there, not at the close."""

import asyncio
from collections.abc import Callable, Sequence

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from tests.loop.conftest import Proxy, call, says, until
from tests.loop.servers import CHUNKED, ENDS, Script, Server
from tests.loop.test_empty_rounds import CONTENTS, GOOGLE, MODEL, SURFACES, Surface
from tests.plain_http import NO_TLS

END = b"0\r\n\r\n"
ARRAY = "Gemini, an array"
JSON = "Gemini, JSON"
CHAT, INTERACTIONS = "chat completions", "Interactions"
CALL, TEXT = [says(call("lookup"), finish="STOP")], [says("done", finish="STOP")]
ASKED: dict[str, Surface] = {
    **SURFACES,
    ARRAY: Surface(f"{GOOGLE}/v1beta/models/{MODEL}:streamGenerateContent", {"contents": CONTENTS}, CALL, TEXT),
    JSON: Surface(f"{GOOGLE}/v1beta/models/{MODEL}:generateContent", {"contents": CONTENTS}, CALL, TEXT),
}

Framed = Callable[[bytes, bytes], list[bytes]]
"""A head with this content type, and the body, in the order in which they are sent."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(kind: bytes, start: bytes) -> bytes:
    return start.replace(b"OK\r\n", b"OK\r\nContent-Type: %b\r\n" % kind)


def chunked(kind: bytes, body: bytes) -> list[bytes]:
    return [head(kind, CHUNKED), chunk(body), END]


def unended(kind: bytes, body: bytes) -> list[bytes]:
    """Chunks without the last one."""
    return [head(kind, CHUNKED), chunk(body)]


def broken(kind: bytes, body: bytes) -> list[bytes]:
    """The connection ends within the body's framing, after the end of the answer."""
    return [*unended(kind, body), ENDS]


def sized(kind: bytes, body: bytes) -> list[bytes]:
    return [head(kind, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)), body]


def last(kind: bytes, body: bytes) -> list[bytes]:
    """A length, on a connection that the server means to close."""
    return [head(kind, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)), body]


def endless(kind: bytes, body: bytes) -> list[bytes]:
    """Only the close would end the body."""
    return [head(kind, b"HTTP/1.1 200 OK\r\n\r\n"), body]


def old(kind: bytes, body: bytes) -> list[bytes]:
    return [head(kind, b"HTTP/1.0 200 OK\r\n\r\n"), body]


def written(name: str, documents: Sequence[Document | bytes]) -> tuple[bytes, bytes]:
    """The content type and the body of an answer."""
    lines = [one if isinstance(one, bytes) else encode(one) for one in documents]
    if name in (ARRAY, JSON):
        return b"application/json", b"[%b]" % b",\r\n".join(lines) if name == ARRAY else lines[0]
    return b"text/event-stream", b"".join(b"data: %b\n\n" % line for line in lines)


FRAMED = [(name, framed) for name in ASKED for framed in (chunked, sized, last)]
MARKED = [(name, framed) for name in (CHAT, INTERACTIONS, ARRAY) for framed in (unended, broken, endless, old)]


@pytest.mark.parametrize(("name", "framed"), [*FRAMED, *MARKED])
async def test_a_round_follows_the_end_of_an_answer_whose_connection_stays_open(
    name: str, framed: Framed, ready: Proxy, server: Server
) -> None:
    surface = ASKED[name]
    server.scripts = [[*framed(*written(name, one))] for one in (surface.calls, surface.text)]
    async with asyncio.timeout(20):
        answer = await asking(name, ready, server)
    assert b"done" in answer
    assert b"lookup" not in answer
    assert b"error" not in answer
    assert sum(server.counts) == 2
    assert [one.error for one in ready.watcher.exchanges] == [None, None]
    if framed in (chunked, sized):
        assert server.counts == [2]


@pytest.mark.parametrize("name", [name for name in ASKED if name not in (CHAT, INTERACTIONS, ARRAY, JSON)])
@pytest.mark.parametrize("framed", [chunked, endless])
async def test_no_round_follows_a_finish_reason_before_the_end_of_the_answer(
    name: str, framed: Framed, ready: Proxy, server: Server
) -> None:
    """A part, and the tokens, may follow it."""
    surface, goes_on = ASKED[name], asyncio.Event()
    wrap = "response" if name == "Code Assist" else ""
    more = says("more ", usageMetadata={"promptTokenCount": 5, "totalTokenCount": 5})
    kind, whole = written(name, [*surface.calls, {wrap: more} if wrap else more])
    first, rest = whole[: (cut := whole.index(b"\n\n") + 2)], whole[cut:]
    begun: Script
    if framed is chunked:
        begun = [head(kind, CHUNKED), chunk(first), goes_on, chunk(rest), END]
    else:
        begun = [*endless(kind, first), goes_on, rest, ENDS]
    server.scripts = [begun, [*framed(*written(name, surface.text))]]
    if framed is endless:
        server.scripts[1].append(ENDS)
    task = asyncio.ensure_future(asking(name, ready, server))
    await until(lambda: ready.tools.ended == ["lookup"])
    await until_idle()
    assert server.counts == [1]
    goes_on.set()
    answer = await task
    assert b"more " in answer
    assert b"done" in answer
    (turn,) = await ready.turns()
    assert turn.usage[0]["promptTokenCount"] == 5


async def until_idle() -> None:
    """Let all that is ready happen."""
    for _ in range(100):
        await asyncio.sleep(0)


async def asking(name: str, proxy: Proxy, server: Server) -> bytes:
    await proxy.transport.aclose()
    proxy.transport = httpx2.AsyncHTTPTransport(verify=NO_TLS)
    proxy.url = server.url.partition("/v1")[0]
    return await ASKED[name].ask(proxy)
