"""Requests that are still being sent when the drain is over, over real connections."""

import asyncio
import ssl
from pathlib import Path

import pytest

from addon.hooks.compose import Toolgraft
from addon.hooks.error_replies import unavailable
from addon.hooks.lifecycle import Lifecycle
from addon.surfaces import match_path
from tests.hooks.proxied import Proxied, serving
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

GOOGLE = "generativelanguage.googleapis.com"
PATHS = (
    "/v1beta/models/gemini-3-flash:generateContent",
    "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse",
    "/v1beta/interactions",
    "/v1beta/openai/chat/completions",
)


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
        assert isinstance(proxied.addon, Toolgraft)
        lifecycle = next(part for part in proxied.addon.parts if isinstance(part, Lifecycle))
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
