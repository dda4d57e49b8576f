"""Large bodies of requests that are not rewritten pass as they arrive, over real connections; small ones come whole."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy import http

from addon.hooks.streams import LARGE
from tests.hooks.proxied import Proxied, chunk, serving

pytestmark = pytest.mark.e2e

GOOGLE = "generativelanguage.googleapis.com"
PATHS = ["/upload/v1beta/files", "/v1beta/batches", "/v1beta/cachedContents/x", "/@a/v1beta/files/x:download?alt=media"]
PIECE = b"x" * LARGE


class Files:
    """An upstream that takes any body, and answers with one of `size` bytes, the second half once `go` is set."""

    def __init__(self) -> None:
        self.received = 0
        self.size = 2
        self.chunked = True
        self.kind = b"application/octet-stream"
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        left = int(length[0][15:]) if length else None if b"chunked" in head else 0
        while left != 0:
            if left is None:
                size = int(await reader.readuntil(b"\r\n"), 16)
                await reader.readexactly(size + 2)
                left = None if size else 0
            else:
                size = len(await reader.read(65536))
                left -= size
            self.received += size
        framing = b"transfer-encoding: chunked" if self.chunked else b"content-length: %d" % self.size
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (self.kind, framing))
        half = b"y" * (self.size // 2)
        for _ in range(2):
            writer.write(chunk(half) if self.chunked else half)
            await writer.drain()
            await self.go.wait()
        writer.write(chunk(b"") if self.chunked else b"")
        await writer.drain()


class Script:
    """Sees what bodies the hooks of a script are given."""

    def __init__(self) -> None:
        self.requests: list[bytes | None] = []
        self.responses: list[bytes | None] = []
        self.answers = False

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        if self.answers:
            flow.response = http.Response.make(418)
            flow.request.stream = False

    def request(self, flow: http.HTTPFlow) -> None:
        self.requests.append(flow.request.data.content)

    def response(self, flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        self.responses.append(flow.response.data.content)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def url(files: Files) -> AsyncIterator[str]:
    async with serving(files) as url:
        yield url


async def upload(client: httpx2.AsyncClient, files: Files, url: str, pieces: int, **headers: str) -> httpx2.Response:
    """Sends each piece once the one before it is there."""

    async def body() -> AsyncIterator[bytes]:
        for number in range(1, pieces + 1):
            yield PIECE
            while files.received < number * len(PIECE):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async with asyncio.timeout(30):
        return await client.post(url, content=body(), headers=headers)


@pytest.mark.parametrize("path", PATHS)
async def test_large_bodies_stream_both_ways(path: str, files: Files, url: str, tmp_path: Path) -> None:
    async with (
        Proxied(tmp_path, url, redirect=[f"{GOOGLE}={url}"]) as proxied,
        proxied.client() as direct,
        proxied.client(proxy=proxied.regular) as through,
    ):
        await proxied.tools("get_weather")
        for client, base in ((direct, proxied.reverse), (through, f"http://{GOOGLE}")):
            for length in ({}, {"content-length": str(3 * len(PIECE))}):
                files.received = 0
                assert (await upload(client, files, base + path, 3, **length)).status_code == 200
            for files.chunked in (True, False):
                files.size = 4 * LARGE
                files.go.clear()
                async with asyncio.timeout(30), client.stream("GET", base + path) as answer:
                    count = 0
                    async for piece in answer.aiter_raw():
                        count += len(piece)
                        if count > LARGE:
                            files.go.set()
                assert count == files.size
            files.size = 2
            if path.startswith("/@"):
                break  # a prefix belongs to reverse ports


async def test_small_ones_come_whole_to_scripts(files: Files, url: str, script: Script, tmp_path: Path) -> None:
    async with Proxied(tmp_path, url, late=[script]) as proxied, proxied.client() as client:
        for files.size, files.chunked in ((LARGE, False), (LARGE + 2, False), (LARGE, True)):
            await client.post(proxied.reverse + PATHS[0], content=b"small")
        files.kind = b"application/json; charset=UTF-8"
        await client.post(proxied.reverse + PATHS[0], content=PIECE + b"x")
    assert script.requests == [b"small"] * 3 + [None]
    assert [body is not None and len(body) for body in script.responses] == [LARGE, False, False, LARGE]


@pytest.mark.parametrize(
    ("graft", "mitm"), [({"stream": "off"}, {}), ({}, {"modify_body": ["/nothing/something"]})], ids=["off", "rule"]
)
async def test_they_come_whole_if_that_is_wanted(
    graft: Any, mitm: Any, files: Files, url: str, script: Script, tmp_path: Path
) -> None:
    files.size = 2 * LARGE
    async with Proxied(tmp_path, url, late=[script], mitm=mitm, **graft) as proxied, proxied.client() as client:
        await client.post(proxied.reverse + PATHS[0], content=PIECE + b"x")
    assert script.requests == [PIECE + b"x"]
    assert script.responses == [b"y" * files.size]


async def test_other_hosts_are_mitmproxy_s_affair(files: Files, url: str, script: Script, tmp_path: Path) -> None:
    files.size = 2 * LARGE
    async with (
        Proxied(tmp_path, url, late=[script]) as proxied,
        proxied.client(proxy=proxied.regular) as client,
    ):
        await client.post(url + PATHS[0], content=PIECE + b"x")
    assert script.requests == [PIECE + b"x"]
    assert script.responses == [b"y" * files.size]


class Streams:
    """Wants requests to stream."""

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        flow.request.stream = True


async def test_a_request_that_the_proxy_refuses_is_not_streamed(files: Files, url: str, tmp_path: Path) -> None:
    async with Proxied(tmp_path, url, early=[Streams()]) as proxied, proxied.client() as client, asyncio.timeout(30):
        for path, headers in (("/@no.such:name" + PATHS[0], {}), (PATHS[0], {"host": "evil.example"})):
            answer = await client.post(proxied.reverse + path, content=PIECE + b"x", headers=headers)
            assert answer.status_code in (400, 403)
    assert files.received == 0


async def test_a_script_may_answer_a_large_upload(files: Files, url: str, script: Script, tmp_path: Path) -> None:
    script.answers = True
    async with Proxied(tmp_path, url, late=[script]) as proxied, proxied.client() as client, asyncio.timeout(30):
        assert (await client.post(proxied.reverse + PATHS[0], content=PIECE + b"x")).status_code == 418
        assert (await client.post(proxied.reverse + PATHS[0], content=b"x")).status_code == 418
    assert files.received == 0
