"""Requests that are still being sent, and answers that still arrive, when the drain is over. Over real connections."""

import asyncio
import ssl
from pathlib import Path

import pytest

from addon.hooks.compose import Toolgraft
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.messages import unavailable
from addon.surfaces.registry import match_path
from tests.hooks.proxied import Proxied, read_message, serving
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

GOOGLE = "generativelanguage.googleapis.com"
PATHS = (
    "/v1beta/models/gemini-3-flash:generateContent",
    "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse",
    "/v1beta/interactions",
    "/v1beta/openai/chat/completions",
)


def lifecycle_of(proxied: Proxied) -> Lifecycle:
    assert isinstance(proxied.addon, Toolgraft)
    return next(part for part in proxied.addon.parts if isinstance(part, Lifecycle))


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def uploading(
    proxied: Proxied, path: str, session: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has sent half of its request, through a tunnel if it names no session."""
    tunnel = session is None
    port = int((proxied.regular if tunnel else proxied.reverse).rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if tunnel:
        writer.write(f"CONNECT {GOOGLE}:443 HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        await writer.start_tls(trusting, server_hostname=GOOGLE)
    host = GOOGLE if tunnel else "localhost"
    head = f"POST {session or ''}{path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 1000\r\n\r\n"
    writer.write(head.encode() + b'{"contents": [')
    return reader, writer


async def test_a_request_that_is_still_sent_when_the_drain_is_over_is_told_so(tmp_path: Path) -> None:
    async with serving(never) as url, Proxied(tmp_path, url) as proxied, asyncio.timeout(20):
        await proxied.tools("get_weather")
        lifecycle = lifecycle_of(proxied)
        sessions = ("", "/@without-tools", None)
        clients = [(path, await uploading(proxied, path, session)) for path in PATHS for session in sessions]
        await until(lambda: len(lifecycle.in_flight) == len(clients))
        for end in lifecycle.before_stop:
            await end()
        assert not lifecycle.in_flight
        for path, (reader, writer) in clients:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 503 ")
            assert "connection: close" in head
            expected = unavailable(match_path("POST", path)).content
            assert expected is not None
            assert await reader.readexactly(len(expected)) == expected
            assert b"the proxy is ending" in expected
            writer.transport.abort()
            await until(writer.is_closing)


@pytest.mark.parametrize("head", [b"", b"content-length: 1000\r\n", b"transfer-encoding: chunked\r\n"])
async def test_half_an_answer_is_not_taken_for_the_whole_when_the_drain_is_over(head: bytes, tmp_path: Path) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%b\r\n2\r\n{}" % head)
        await reader.read()

    async with serving(half) as url, Proxied(tmp_path, url) as proxied, proxied.client() as client:
        await proxied.tools("get_weather")
        lifecycle = lifecycle_of(proxied)
        asked = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        asking = [
            asyncio.ensure_future(client.post(proxied.reverse + session + PATHS[0], json=asked))
            for session in ("", "/@without-tools")
        ]
        await until(lambda: len(flows := lifecycle.in_flight.flows) == 2 and all(flow.response for flow in flows))
        async with asyncio.timeout(20):
            for end in lifecycle.before_stop:
                await end()
            for answer in await asyncio.gather(*asking):
                assert (answer.status_code, answer.json()["error"]["status"]) == (503, "UNAVAILABLE")
