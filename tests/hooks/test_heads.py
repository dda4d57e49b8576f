"""Heads without an end at the proxy's ports, over real connections."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.hooks.proxied import Proxied, answer, read_message, requests, serving

pytestmark = pytest.mark.e2e

LIMIT = 2048
PATH = "/v1beta/models/gemini-3-flash:generateContent"
BODY = b'{"contents": [{"role": "user", "parts": [{"text": "' + b"x" * 5000 + b'"}]}]}'
ANSWER = b'{"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi."}]}, "finishReason": "STOP"}]}'


async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for _ in requests(reader):
        writer.write(answer(ANSWER))


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_message(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: 1\r\n")
        await writer.drain()


async def ask(proxied: Proxied, *pieces: bytes) -> tuple[bytes, dict[str, object]]:
    """The answer to a request that comes in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxied.reverse.rpartition(":")[2]))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        head, body = await read_message(reader)
        return head.lower(), json.loads(body)
    finally:
        writer.transport.abort()


def head(*lines: str) -> bytes:
    return "\r\n".join([f"POST {PATH} HTTP/1.1", "host: localhost", f"content-length: {len(BODY)}", *lines]).encode()


async def test_a_request_whose_head_has_no_end_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async with serving(whole) as url, Proxied(tmp_path, url, max_headers=str(LIMIT)) as proxied, asyncio.timeout(20):
        await proxied.tools("get_weather")
        for size, status in ((LIMIT - 500, 200), (LIMIT + 500, 431)):
            begins, reply = await ask(proxied, head(f"x-more: {'x' * size}"), *([b"\r\n\r\n", BODY] * (status == 200)))
            assert begins.startswith(f"http/1.1 {status} ".encode())
        assert reply["error"] == {
            "code": 431,
            "status": "INVALID_ARGUMENT",
            "message": f"the headers of the request have more than {LIMIT} bytes (graft_max_headers)",
        }
        begins, _ = await ask(proxied, head("", "") + BODY)  # a body behind its head does not count
        assert begins.startswith(b"http/1.1 200 ")


@pytest.mark.parametrize("session", ["", "/@without-tools"])
async def test_an_answer_whose_head_has_no_end_is_an_error_of_the_surface(session: str, tmp_path: Path) -> None:
    async with serving(endless) as url, Proxied(tmp_path, url, max_headers=str(LIMIT)) as proxied, asyncio.timeout(20):
        await proxied.tools("get_weather")
        begins, reply = await ask(proxied, head("", "").replace(b"POST ", f"POST {session}".encode()) + BODY)
        assert begins.startswith(b"http/1.1 502 ")
        error = reply["error"]
        assert isinstance(error, dict)
        assert error["status"] == "UNAVAILABLE"
