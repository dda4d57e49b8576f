"""Streams that are not grafted pass as they arrive, byte for byte, over real connections."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy import http, io

from tests.databases import notes_in
from tests.hooks.proxied import Proxied, chunk, read_message, serving

pytestmark = pytest.mark.e2e

DEVELOPER = "/v1beta/models/gemini-3-flash:streamGenerateContent"
INTERACTIONS = "/v1beta/interactions"
CHAT = "/v1beta/openai/chat/completions"
EVENTS = b"text/event-stream"
ASKED = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
FIRST = b'data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}, "index": 0}]}\r\n\r\n'
LAST = FIRST.replace(b'"index"', b'"finishReason": "STOP", "index"')


class Slow:
    """An upstream that sends the first piece, and the others once `go` is set; or breaks the connection off there."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.kind = EVENTS
        self.headers = b""
        self.pieces: Sequence[bytes] = (FIRST, LAST)
        self.breaks = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%btransfer-encoding: chunked\r\n\r\n" % (self.kind, self.headers)
        )
        for number, piece in enumerate(self.pieces):
            if number == 1:
                await self.go.wait()
                if self.breaks:
                    return
            writer.write(chunk(piece))
            await writer.drain()
        writer.write(chunk(b""))
        await writer.drain()


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def url(slow: Slow) -> AsyncIterator[str]:
    async with serving(slow) as url:
        yield url


async def streamed(proxied: Proxied, slow: Slow, path: str, body: Any) -> bytes:
    """The whole answer; its second piece is sent once the first has arrived."""
    async with (
        asyncio.timeout(10),
        proxied.client() as client,
        client.stream("POST", proxied.reverse + path, json=body) as response,
    ):
        assert response.status_code == 200
        received = b""
        async for piece in response.aiter_raw():
            received += piece
            slow.go.set()
        return received


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (f"{DEVELOPER}?alt=sse", ASKED, EVENTS),
        (DEVELOPER, ASKED, b"application/json; charset=UTF-8"),
        ("/v1internal:streamGenerateContent?alt=sse", {"model": "m", "request": ASKED}, EVENTS),
        (INTERACTIONS, {"model": "gemini-3-flash", "input": "hi", "stream": True}, EVENTS),
        (CHAT, {"model": "gemini-3-flash", "messages": [{"role": "user", "content": "hi"}], "stream": True}, EVENTS),
    ],
    ids=["events", "array", "Code Assist", "Interactions", "chat completions"],
)
async def test_a_stream_of_a_session_without_tools_arrives_as_it_is_sent(
    path: str, body: Any, kind: bytes, slow: Slow, url: str, tmp_path: Path
) -> None:
    slow.kind, slow.pieces = kind, (b"[" + FIRST, b"," + LAST + b"]")
    async with Proxied(tmp_path, url) as proxied:
        assert await streamed(proxied, slow, path, body) == b"".join(slow.pieces)


async def test_one_that_is_compressed_stays_so(slow: Slow, url: str, tmp_path: Path) -> None:
    packed = gzip.compress(FIRST + LAST)
    slow.headers, slow.pieces = b"content-encoding: gzip\r\n", (packed[:20], packed[20:])
    async with Proxied(tmp_path, url) as proxied:
        assert await streamed(proxied, slow, f"{DEVELOPER}?alt=sse", ASKED) == packed


async def test_one_that_breaks_off_breaks_off(slow: Slow, url: str, tmp_path: Path) -> None:
    slow.breaks = True
    async with Proxied(tmp_path, url) as proxied:
        with pytest.raises(httpx2.RemoteProtocolError):
            await streamed(proxied, slow, f"{DEVELOPER}?alt=sse", ASKED)


async def test_all_of_it_is_recorded(slow: Slow, url: str, tmp_path: Path) -> None:
    packed = gzip.compress(FIRST + LAST)
    slow.headers, slow.pieces = b"content-encoding: gzip\r\n", (packed[:20], packed[20:])
    file = tmp_path / "flows.mitm"
    async with Proxied(tmp_path, url, record=str(file)) as proxied:
        await streamed(proxied, slow, f"{DEVELOPER}?alt=sse", ASKED)
    with file.open("rb") as written:
        (flow,) = io.FlowReader(written).stream()
    assert isinstance(flow, http.HTTPFlow)
    assert flow.response is not None
    assert flow.response.content == FIRST + LAST


async def test_graft_stream_off_holds_it_back(slow: Slow, url: str, tmp_path: Path) -> None:
    slow.go.set()
    async with Proxied(tmp_path, url, stream="off") as proxied:
        assert await streamed(proxied, slow, f"{DEVELOPER}?alt=sse", ASKED) == FIRST + LAST
        async with proxied.client() as client:
            slow.go.clear()
            with pytest.raises(httpx2.ReadTimeout):
                await client.post(f"{proxied.reverse}{DEVELOPER}?alt=sse", json=ASKED, timeout=0.3)


async def test_a_turn_that_is_only_noted_streams_too(slow: Slow, url: str, tmp_path: Path) -> None:
    """A client that continues a cached content has other tools: nothing is grafted, and its turns are known all the
    same."""
    async with Proxied(tmp_path, url) as proxied:
        await proxied.tools("get_weather")
        body = ASKED | {"cachedContent": "cachedContents/1"}
        assert await streamed(proxied, slow, f"{DEVELOPER}?alt=sse", body) == FIRST + LAST
        assert notes_in(proxied.runtime.store)
