"""An answer that has more than it may have, packed or not, is an error, and costs no memory if it is a stream or says
its length. Over real connections."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http

from tests.hooks.proxied import Proxied, chunk, read_message, serving
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

GOOGLE = "generativelanguage.googleapis.com"
JSON_OUTPUT = {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}
MODEL = "/v1beta/models/gemini-3-flash"
URLS = {
    "whole": (f"{MODEL}:generateContent", b"application/json"),
    "events": (f"{MODEL}:streamGenerateContent?alt=sse", b"text/event-stream"),
    "array": (f"{MODEL}:streamGenerateContent", b"application/json"),
}
ASKED = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
TOOLS = 'def weather(city: str) -> str:\n    """The weather."""\n    return "fine"\n'
PACKS: dict[str, Callable[[bytes], bytes]] = {"deflate": zlib.compress, "gzip": gzip.compress}
CHAT = {"model": "gemini-3-flash", "messages": [{"role": "user", "content": "hi"}]}
UNTOUCHED = {
    "whole": (URLS["whole"][0], ASKED),
    "count": (f"{MODEL}:countTokens", ASKED),
    "cache": ("/v1beta/cachedContents", ASKED | {"model": "models/gemini-3-flash"}),
    "chat": ("/v1beta/openai/chat/completions", CHAT),
    "interaction": ("/v1beta/interactions", {"model": "gemini-3-flash", "input": "hi"}),
}
MOST = 100_000


@cache
def packed(encoding: str) -> bytes:
    bomb = b'data: {"candidates": [' + bytes([32]) * 48 * 1024 * 1024
    return PACKS[encoding](bomb)


class Flood:
    """An upstream whose answers begin with `head`, and go on with `piece` until nobody takes it any more, or until they
    have `pieces`, if they say their length."""

    def __init__(self) -> None:
        self.head = b""
        self.piece = b""
        self.ends = False
        self.pieces = 0
        self.status = b"200 OK"
        self.over = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (await read_message(reader))[0]:
                if self.pieces:
                    size = len(self.piece) * self.pieces
                    writer.write(b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n" % (self.status, self.head, size))
                    for _ in range(self.pieces):
                        writer.write(self.piece)
                        await writer.drain()
                    continue
                writer.write(b"HTTP/1.1 %b\r\n%btransfer-encoding: chunked\r\n\r\n" % (self.status, self.head))
                writer.write(chunk(self.piece))
                await writer.drain()
                while not self.ends:
                    writer.write(chunk(self.piece))
                    await writer.drain()
                writer.write(chunk(b""))
                await writer.drain()
        finally:
            self.over.set()


@pytest.fixture
def flood() -> Flood:
    return Flood()


@pytest.fixture(params=["captured", "loop"])
async def proxied(request: pytest.FixtureRequest, flood: Flood, tmp_path: Path) -> AsyncIterator[Proxied]:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    delivery = "auto" if request.param == "loop" else "placeholder"
    limits: dict[str, Any] = {"max_answer": str(MOST), "max_event": "20000"}
    async with (
        serving(flood) as url,
        Proxied(tmp_path, url, tools=[str(file)], delivery=delivery, **limits) as proxied,
    ):
        yield proxied


async def asked(proxied: Proxied, form: str) -> tuple[int, bytes]:
    async with asyncio.timeout(30), proxied.client() as client:
        response = await client.post(proxied.reverse + URLS[form][0], json=ASKED)
        return response.status_code, response.content


@pytest.mark.parametrize("form", URLS)
@pytest.mark.parametrize("encoding", PACKS)
async def test_a_few_bytes_that_hold_more_than_there_may_be_are_an_error(
    proxied: Proxied, flood: Flood, form: str, encoding: str
) -> None:
    flood.head = b"content-type: %b\r\ncontent-encoding: %b\r\n" % (URLS[form][1], encoding.encode())
    flood.piece, flood.ends = packed(encoding), True
    tracemalloc.start()
    try:
        _, body = await asked(proxied, form)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert b'"code":502' in body
    assert b"graft_max_answer" in body


@pytest.mark.parametrize("form", ["events", "array"])
async def test_an_answer_without_an_end_is_an_error_and_is_not_read_on(
    proxied: Proxied, flood: Flood, form: str
) -> None:
    event = json.dumps({"candidates": [{"content": {"role": "model", "parts": [{"text": "x" * 1000}]}}]}).encode()
    flood.head = b"content-type: %b\r\n" % URLS[form][1]
    flood.piece = b"data: %b\r\n\r\n" % event if form == "events" else b" " * 5000 + b"["
    status, body = await asked(proxied, form)
    assert b'"code":502' in body
    assert b"graft_max_" in body
    assert len(body) < 2 * MOST
    assert status in (200, 502)  # 502 if nothing of it was there before its end
    async with asyncio.timeout(10):
        await flood.over.wait()


@pytest.mark.parametrize("form", ["events", "array"])
async def test_an_event_without_an_end_is_an_error(proxied: Proxied, flood: Flood, form: str) -> None:
    flood.head = b"content-type: %b\r\n" % URLS[form][1]
    flood.piece = b'data: {"x": "' + b"x" * 30_000 if form == "events" else b'[{"x": "' + b"x" * 30_000
    flood.ends = True  # far below the limit of an answer
    _, body = await asked(proxied, form)
    assert b'"code":502' in body
    assert b"graft_max_event" in body


async def assert_refused(proxied: Proxied, flood: Flood, path: str, body: Any, bound: int = 5_000_000) -> None:
    """Whether the answer says its length or not."""
    flood.ends = True
    async with asyncio.timeout(30), proxied.client() as client:
        for flood.pieces, size in ((0, 2 * MOST), (2000, 10_000)):
            flood.piece = b" " * size
            tracemalloc.start()
            response = await client.post(proxied.reverse + path, json=body)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert response.status_code == 502
            assert "graft_max_answer" in response.json()["error"]["message"]
            assert most < bound, "of 20,000,000 bytes"
            assert (await client.post(proxied.reverse + path, json=body)).status_code == 502, "the connection holds"


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", UNTOUCHED)
async def test_the_bound_holds_for_a_session_without_tools(
    flood: Flood, tmp_path: Path, name: str, recorded: bool
) -> None:
    flood.head = b"content-type: application/json\r\n"
    record: dict[str, Any] = {"record": str(tmp_path / "flows")} if recorded else {}
    async with (
        serving(flood) as url,
        Proxied(tmp_path, url, max_answer=str(MOST), max_event="20000", **record) as proxied,
    ):
        await assert_refused(proxied, flood, *UNTOUCHED[name])


@pytest.mark.parametrize("status", [b"200 OK", b"429 Too Many Requests"])
@pytest.mark.parametrize("body", [ASKED, ASKED | {"cachedContent": "cachedContents/1"}])
async def test_the_bound_holds_for_errors_and_for_requests_that_get_no_tools(
    flood: Flood, tmp_path: Path, body: Any, status: bytes
) -> None:
    flood.status, flood.head = status, b"content-type: application/json\r\n"
    async with serving(flood) as url, Proxied(tmp_path, url, max_answer=str(MOST), max_event="20000") as proxied:
        await proxied.tools("weather")
        await assert_refused(proxied, flood, URLS["whole"][0], body)


@pytest.mark.parametrize("tools", [[], ["weather"]])
@pytest.mark.parametrize("form", ["events", "array"])
async def test_the_bound_holds_for_streams_that_must_come_whole(
    flood: Flood, tmp_path: Path, form: str, tools: list[str]
) -> None:
    flood.head = b"content-type: %b\r\n" % URLS[form][1]
    async with (
        serving(flood) as url,
        Proxied(tmp_path, url, max_answer=str(MOST), max_event="20000", stream="off") as proxied,
    ):
        if tools:
            await proxied.tools(*tools)
        await assert_refused(proxied, flood, URLS[form][0], ASKED)


class SetsStream:
    """A script that says whether answers stream."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        flow.response.stream = self.value


@pytest.mark.parametrize("tools", [[], ["weather"]])
async def test_the_bound_holds_for_a_stream_that_a_script_wants_whole(
    flood: Flood, tmp_path: Path, tools: list[str]
) -> None:
    flood.head = b"content-type: text/event-stream\r\n"
    async with (
        serving(flood) as url,
        Proxied(tmp_path, url, max_answer=str(MOST), max_event="20000", late=[SetsStream(False)]) as proxied,
    ):
        if tools:
            await proxied.tools(*tools)
        await assert_refused(proxied, flood, URLS["events"][0], ASKED, bound=100_000_000)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_untouched_answer_within_the_bound_or_streamed_by_a_script_is_as_it_came(
    flood: Flood, tmp_path: Path, streams: bool
) -> None:
    size = 3 * MOST if streams else MOST
    flood.head, flood.piece, flood.ends = b"content-type: application/json\r\n", b" " * size, True
    late = [SetsStream(True)] if streams else []
    async with (
        serving(flood) as url,
        Proxied(tmp_path, url, max_answer=str(MOST), max_event="20000", late=late) as proxied,
    ):
        status, body = await asked(proxied, "whole")
        assert (status, body) == (200, flood.piece)


PASSES = {
    "no tools": ("/@empty", b"200 OK", ASKED),
    "no tools, an error": ("/@empty", b"429 Too Many Requests", ASKED),
    "tools, an error": ("", b"429 Too Many Requests", ASKED),
}
UNPACKS = {
    "tools": ("", b"200 OK", ASKED),
    "only noted": ("", b"200 OK", ASKED | {"cachedContent": "cachedContents/1"}),
}


@pytest.mark.parametrize("delivery", ["placeholder", "loop"])
async def test_an_answer_counts_unpacked_if_its_request_was_rewritten_and_as_it_came_if_not(
    flood: Flood, tmp_path: Path, delivery: str
) -> None:
    """Whether the answer itself is changed or not: this one has no call."""
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    answer = {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "x" * 2 * MOST}]}, "finishReason": "STOP"}]
    }
    flood.piece, flood.ends = gzip.compress(json.dumps(answer).encode()), True
    flood.head = b"content-type: application/json\r\ncontent-encoding: gzip\r\n"
    tools: dict[str, Any] = {"tools": [str(file)]} if delivery == "loop" else {}
    limits: dict[str, Any] = {"max_answer": str(MOST), "max_event": "20000", "delivery": delivery}
    async with serving(flood) as url, Proxied(tmp_path, url, **limits, **tools) as proxied:
        await proxied.tools("get_weather")
        cases = UNPACKS if tools else PASSES | UNPACKS
        for name, (session, flood.status, body) in cases.items():
            async with proxied.client() as client:
                got = await client.post(proxied.reverse + session + URLS["whole"][0], json=body)
            if name in PASSES:
                assert (got.status_code, got.json()) == (int(flood.status[:3]), answer), name
            else:
                assert got.status_code == 502, name
                assert "graft_max_answer" in got.json()["error"]["message"], name


@pytest.mark.parametrize("stream", [False, True])
async def test_the_bound_holds_for_a_front_door_s_request_that_gets_no_tools(
    flood: Flood, tmp_path: Path, stream: bool
) -> None:
    flood.head = b"content-type: %b\r\n" % (b"text/event-stream" if stream else b"application/json")
    flood.piece = b": \r\n\r\n" * 800 if stream else b" " * 5000
    door: dict[str, Any] = {"control": "127.0.0.1:0", "token": "off"}
    async with (
        serving(flood) as url,
        Proxied(tmp_path, url, redirect=[f"{GOOGLE}={url}"], max_answer=str(MOST), **door) as proxied,
        proxied.client(headers={"x-goog-api-key": "a-secret-key"}) as client,
    ):
        asked = {"model": "gemini-2.5-flash", "input": "hi", "stream": stream, "generationConfig": JSON_OUTPUT}
        assert proxied.runtime._server is not None
        got = await client.post(f"{proxied.runtime._server.url}/v1/gemini", json=asked)
        assert "graft_max_answer" in got.text
        await flood.over.wait()


@pytest.mark.parametrize("form", ["events", "array"])
async def test_an_upstream_that_is_stopped_breaks_off_without_an_error(
    flood: Flood, tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow:
        async def response(self, flow: http.HTTPFlow) -> None:
            await until(lambda: not flow.server_conn.connected)

    flood.head = b"content-type: %b\r\n" % URLS[form][1]
    flood.piece = b'data: {"x": "' + b"x" * 5000 if form == "events" else b'[{"x": "' + b"x" * 5000
    async with serving(flood) as url, Proxied(tmp_path, url, late=[Slow()], max_answer=str(MOST)) as proxied:
        await proxied.tools("get_weather")
        _, body = await asked(proxied, form)
    assert b"graft_max_answer" in body
    assert "crashed" not in caplog.text
