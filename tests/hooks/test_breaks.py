"""The error for a client if the upstream breaks off before the client has anything of the answer."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy import http
from mitmproxy.certs import CertStore

from tests.hooks.proxied import Proxied, read_message, serving
from tests.hooks.test_untouched_streams import ASKED, EVENTS, FIRST
from tests.ports import free_port

pytestmark = pytest.mark.e2e

GENERATE = "/v1beta/models/gemini-3-flash:generateContent"
STREAM = "/v1beta/models/gemini-3-flash:streamGenerateContent"
ASSIST = "/v1internal:streamGenerateContent?alt=sse"
CACHED = "/v1beta/cachedContents"
COUNT = "/v1beta/models/gemini-3-flash:countTokens"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


JSON = b"application/json"


class Breaking:
    """Reads a request, writes this, and breaks off."""

    def __init__(self) -> None:
        self.written = b""
        self.aborts = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(self.written)
        await writer.drain()
        if self.aborts:
            writer.transport.abort()  # of TLS, without close_notify


@pytest.fixture
def breaking() -> Breaking:
    return Breaking()


@pytest.fixture
async def url(breaking: Breaking) -> AsyncIterator[str]:
    async with serving(breaking) as url:
        yield url


def own_context(folder: Path) -> ssl.SSLContext:
    """A server's, with a certificate of its own."""
    CertStore.create_store(folder, "test", 2048)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "test-ca.pem")
    return context


async def ask(proxied: Proxied, path: str, client: httpx2.AsyncClient) -> httpx2.Response:
    body: Any = {"model": "m", "request": ASKED} if "v1internal" in path else ASKED
    return await client.post(proxied.reverse + path, json=body)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        *((path, b"") for path in (GENERATE, STREAM, f"{STREAM}?alt=sse", ASSIST, COUNT, CACHED)),
        *((path, b"no HTTP\r\n\r\n") for path in (GENERATE, f"{STREAM}?alt=sse")),
        *((path, HEAD + b'{"candidates": [') for path in (GENERATE, COUNT)),
    ],
)
async def test_a_client_is_told_in_its_own_form_that_the_model_cannot_be_reached(
    path: str, written: bytes, breaking: Breaking, url: str, tmp_path: Path
) -> None:
    breaking.written = written
    async with Proxied(tmp_path, url) as proxied, proxied.client() as client, asyncio.timeout(10):
        await proxied.tools("get_weather")
        for session in ("", "", "/@without-tools"):
            answer = await ask(proxied, session + path, client)
            assert answer.status_code == 502
            assert answer.headers["content-type"].startswith("application/json")
            document = answer.json()
            error = (document[0] if isinstance(document, list) else document)["error"]
            assert (error["code"], error["status"]) == (502, "UNAVAILABLE")
            assert error["message"].startswith("toolgraft: the model cannot be reached: ")


async def test_an_interim_answer_is_an_error_that_says_so(breaking: Breaking, url: str, tmp_path: Path) -> None:
    breaking.written = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + HEAD
    async with Proxied(tmp_path, url) as proxied, proxied.client() as client, asyncio.timeout(10):
        await proxied.tools("get_weather")
        for session in ("", "/@without-tools"):
            answer = await ask(proxied, session + GENERATE, client)
            assert (answer.status_code, answer.json()["error"]["status"]) == (502, "UNAVAILABLE")
            assert "the server sent an interim answer (103), which mitmproxy cannot read" in answer.text


@pytest.mark.parametrize("options", [{}, {"filter": "~u nothing"}])
async def test_so_it_is_where_there_is_no_connection(options: dict[str, Any], tmp_path: Path) -> None:
    async with Proxied(tmp_path, f"http://127.0.0.1:{free_port()}", **options) as proxied, proxied.client() as client:
        await proxied.tools("get_weather")
        for session in ("", "/@without-tools"):
            answer = await ask(proxied, session + GENERATE, client)
            assert (answer.status_code, answer.json()["error"]["status"]) == (502, "UNAVAILABLE")
            chat = {"model": "gemini-3-flash", "messages": [{"role": "user", "content": "hi"}]}
            answer = await client.post(f"{proxied.reverse}{session}/v1beta/openai/chat/completions", json=chat)
            assert answer.status_code == 502
            assert "the model cannot be reached" in answer.json()["error"]["message"]


async def test_a_request_to_no_surface_gets_mitmproxy_s_own_error(url: str, tmp_path: Path) -> None:
    async with Proxied(tmp_path, url) as proxied, proxied.client() as client:
        answer = await ask(proxied, "/somewhere", client)
        assert (answer.status_code, answer.headers["content-type"]) == (502, "text/html")


async def test_scripts_are_told_of_the_error_and_may_kill_the_flow(
    breaking: Breaking, url: str, tmp_path: Path
) -> None:
    class Script:
        def __init__(self) -> None:
            self.errors: list[str] = []
            self.kills = False

        def error(self, flow: http.HTTPFlow) -> None:
            assert flow.error is not None
            self.errors.append(flow.error.msg)
            if self.kills:
                flow.error = None
                flow.kill()

    script = Script()
    async with Proxied(tmp_path, url, late=[script]) as proxied, proxied.client() as client, asyncio.timeout(10):
        await proxied.tools("get_weather")
        assert (await ask(proxied, GENERATE, client)).status_code == 502
        assert len(script.errors) == 1
        script.kills = True
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(proxied, GENERATE, client)


async def test_a_stream_that_has_begun_breaks_off(breaking: Breaking, url: str, tmp_path: Path) -> None:
    breaking.written = HEAD.replace(b"application/json", b"text/event-stream") + b'data: {"a": 1}\r\n\r\n'
    async with Proxied(tmp_path, url) as proxied, proxied.client() as client, asyncio.timeout(10):
        await proxied.tools("get_weather")
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(proxied, f"{STREAM}?alt=sse", client)


@pytest.mark.parametrize("delivery", ["placeholder", "auto"])
@pytest.mark.parametrize(
    "head",
    [b"content-length: 1000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n12\r\n"],
    ids=["length", "chunked"],
)
async def test_a_stream_that_has_begun_gets_no_second_head(
    breaking: Breaking, url: str, tmp_path: Path, head: bytes, delivery: str
) -> None:
    breaking.written = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + head + b'data: {"a": 1}\r\n\r\n'
    async with Proxied(tmp_path, url, delivery=delivery) as proxied, asyncio.timeout(10):
        await proxied.tools("get_weather")
        body = json.dumps(ASKED).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxied.reverse.rpartition(":")[2]))
        writer.write(
            f"POST {STREAM}?alt=sse HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        received = await reader.read()
        writer.close()
    assert received.count(b"HTTP/1.1") == 1
    assert b'data: {"a": 1}' in received
    assert not received.endswith(b"0\r\n\r\n"), "the client has to know that this was not all"


@pytest.mark.parametrize("ends", ["closed", "aborted", "aborted within TLS"])
async def test_an_answer_without_a_length_is_not_whole_because_its_connection_has_ended(
    ends: str, breaking: Breaking, tmp_path: Path
) -> None:
    breaking.aborts = ends != "closed"
    first = b'{"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": "get_weather"}}]}}]}'
    cases = [
        (f"{STREAM}?alt=sse", EVENTS, b"data: %b\r\n\r\n" % first),
        (f"{STREAM}?alt=sse", EVENTS, FIRST),
        (STREAM, JSON, b"[%b" % first),
        (GENERATE, JSON, b'{"candidates": ['),
    ]
    tls = own_context(tmp_path) if ends == "aborted within TLS" else None
    async with (
        serving(breaking, tls) as url,
        Proxied(tmp_path, url, mitm={"ssl_insecure": True}, delivery="placeholder") as proxied,
        proxied.client() as client,
        asyncio.timeout(10),
    ):
        await proxied.tools("get_weather")
        for path, kind, body in cases:
            breaking.written = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\n%b" % (kind, body)
            if tls is not None and STREAM in path:
                with pytest.raises(httpx2.RemoteProtocolError):  # TLS tells of the cut, and the client learns it so
                    await ask(proxied, path, client)
                continue
            answer = await ask(proxied, path, client)
            assert "the connection to the model ended before the answer did" in answer.text
            assert "Tool call completed" not in answer.text
            assert answer.status_code == (200 if STREAM in path else 502)
