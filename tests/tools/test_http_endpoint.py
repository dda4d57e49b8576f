"""Calls run by an HTTP endpoint, against a real server on loopback."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.tools.base import SourceError, ToolError
from addon.tools.http_endpoint import MAX_ANSWER, HttpExecutor
from addon.tools.outputs import output_of
from tests.plain_http import NO_TLS


class Server:
    """Answers each request with the next of `answers` (whole responses), or hangs up if it is None."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append((head[0], headers, json.loads(body)))
            if answer := self.answers.pop(0):
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def answer(body: bytes, kind: str = "application/json", status: str = "200 OK", **headers: str) -> bytes:
    fields = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
        yield client


@pytest.fixture
def executor(server: Server, client: httpx2.AsyncClient) -> HttpExecutor:
    url = f"http://user:secret@127.0.0.1:{server.port}/run?key=secret"
    return HttpExecutor({"type": "http", "url": url, "headers": {"X-Team": "blue"}}, client)


async def test_a_call_is_posted_with_its_headers_and_the_answer_is_the_result(
    server: Server, executor: HttpExecutor
) -> None:
    server.answers = [answer(b'{"sum": 3}')]
    assert await executor.call("add", {"a": 1, "b": 2}, call_id="c1") == {"sum": 3}
    line, headers, body = server.requests[0]
    assert line == "POST /run?key=secret HTTP/1.1"
    assert headers["x-team"] == "blue"
    assert headers["content-type"] == "application/json"
    assert body == {"call_id": "c1", "name": "add", "args": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("response", "result"),
    [
        (answer(b"[1, null]"), [1, None]),
        (answer(b'{"a": 1}', "application/problem+json; charset=utf-8"), {"a": 1}),
        (answer(b'{"a": 1}', ""), {"a": 1}),
        (answer(b"hello", ""), "hello"),
        (answer("grüß".encode(), "text/plain; charset=utf-8"), "grüß"),
        (answer(b'{"a": 1}', "text/plain"), '{"a": 1}'),
        (answer(b"<svg/>", "image/svg+xml"), "<svg/>"),
        (answer(b"", ""), None),
        (answer(b"", status="204 No Content", Content_Length=""), None),
        (answer(gzip.compress(b'{"a": 1}'), Content_Encoding="gzip"), {"a": 1}),
    ],
    ids=["list", "+json", "untyped JSON", "untyped text", "text", "JSON as text", "SVG", "empty", "204", "gzip"],
)
async def test_an_answer_is_json_or_text(server: Server, executor: HttpExecutor, response: bytes, result: Any) -> None:
    server.answers = [response]
    assert await executor.call("t", {}, call_id="c") == result


PARTS = b'[{"inlineData": {"mime_type": "image/png", "data": "iVBORw"}}]'


@pytest.mark.parametrize(
    ("response", "result"),
    [
        (answer(b"\x89PNG", "image/png"), "[part 1: image/png]"),
        (answer(b"\x89PNG", "image/png; charset=binary"), "[part 1: image/png]"),
        (answer(b'{"result": {"a": 1}, "parts": %b}' % PARTS), {"a": 1}),
    ],
)
async def test_an_answer_has_images_by_its_type_or_in_its_parts(
    server: Server, executor: HttpExecutor, response: bytes, result: Any
) -> None:
    server.answers = [response]
    output = output_of(await executor.call("t", {}, call_id="c"))
    assert json.loads(output.data) == result
    assert output.parts == ({"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},)


@pytest.mark.parametrize("layers", [1, 2])
async def test_a_decompression_bomb_costs_no_more_memory_than_the_largest_answer(
    server: Server, executor: HttpExecutor, layers: int
) -> None:
    bomb = zlib.compress(bytes(20 * MAX_ANSWER))
    encoding = ", ".join(["deflate"] * layers)
    for _ in range(layers - 1):
        bomb = zlib.compress(bomb)
    server.answers = [answer(bomb, Content_Encoding=encoding)]
    tracemalloc.start()
    try:
        with pytest.raises(ToolError, match=r"sent more than|cannot be decompressed"):
            await executor.call("t", {}, call_id="c")
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_ANSWER
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("body", [{"parts": [1]}, {"parts": [], "result": 1, "more": 1}])
async def test_an_object_that_has_parts_of_its_own_is_a_result(
    server: Server, executor: HttpExecutor, body: dict[str, Any]
) -> None:
    server.answers = [answer(json.dumps(body).encode())]
    assert await executor.call("t", {}, call_id="c") == body


@pytest.mark.parametrize(
    ("response", "words", "retryable"),
    [
        (answer(b"secret", "text/plain", "404 Not Found"), "answered 404 Not Found", False),
        (answer(b"secret" * 10_000, "text/plain", "400 secret"), "answered 400 Bad Request", False),
        (answer(b"secret", status="599 secret"), "answered 599", True),
        (answer(b"", status="408 secret"), "answered 408 Request Timeout", True),
        (answer(b"", status="429 Slow"), "answered 429 Too Many Requests", True),
        (answer(b"", status="503 Busy"), "answered 503 Service Unavailable", True),
        (None, "cannot be reached: the connection broke", True),
        (b"secret\r\n\r\n", "cannot be reached: the connection broke", True),
        (answer(b'{"secret', "application/json"), "sent invalid JSON", False),
        (answer(b"[" * 100_000, "application/json"), "sent invalid JSON", False),
        (answer(b"secret\xff", "x/secret"), "sent an answer that is neither JSON nor UTF-8 text", False),
        (answer(b'{"result": 1, "parts": [{"text": "secret"}]}'), "sent a result whose parts[0] must be", False),
        (
            answer(b'{"result": 1, "parts": [{"inlineData": {"mimeType": "image/png", "data": "#"}}]}'),
            "sent a result whose parts[0].inlineData.data must be base64 of at least one byte",
            False,
        ),
        (answer(b"secret", Content_Encoding="gzip"), "sent an answer that cannot be decompressed", False),
        (answer(b"x" * (MAX_ANSWER + 1), "text/plain"), f"sent more than {MAX_ANSWER} bytes", False),
        (
            answer(gzip.compress(b" " * (MAX_ANSWER + 1)), Content_Encoding="gzip"),
            f"sent more than {MAX_ANSWER} bytes",
            False,
        ),
        (
            answer(b"", status="307 secret", Location="http://secret.example/secret"),
            "answered 307 with a redirect, which is not followed",
            False,
        ),
        (
            answer(b"", status="307 secret", Location="http://["),
            "answered 307 with a redirect, which is not followed",
            False,
        ),
    ],
    ids=[
        *(
            "404",
            "long error",
            "599",
            "408",
            "429",
            "503",
            "hang-up",
            "no HTTP",
            "broken JSON",
            "deep JSON",
            "no text",
            "no parts",
            "no base64",
        ),
        *("broken gzip", "too large", "too large when unpacked", "redirect", "redirect nowhere"),
    ],
)
async def test_a_failure_names_origin_and_status_and_nothing_that_may_be_secret(
    server: Server, executor: HttpExecutor, response: bytes | None, words: str, retryable: bool
) -> None:
    server.answers = [response]
    with pytest.raises(ToolError) as raised:
        await executor.call("t", {}, call_id="c")
    assert str(raised.value).startswith(f"http://127.0.0.1:{server.port} {words}")
    assert raised.value.retryable is retryable
    assert raised.value.sent, "the request has reached the endpoint, or may have"


async def test_headers_that_http_does_not_take_are_not_shown(server: Server, client: httpx2.AsyncClient) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    executor = HttpExecutor({"type": "http", "url": url, "headers": {"authorization": "Bearer secret "}}, client)
    with pytest.raises(ToolError) as raised:
        await executor.call("t", {}, call_id="c")
    assert "its headers are not valid in HTTP" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert (raised.value.retryable, raised.value.sent) == (False, False)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, [float("inf"), "a\ud800"]], ids=["text", "name", "within"])
async def test_arguments_that_json_cannot_hold_are_an_error_and_nothing_is_sent(
    server: Server, executor: HttpExecutor, value: Any
) -> None:
    with pytest.raises(ToolError, match="the arguments cannot be sent as JSON"):
        await executor.call("t", {"a": value}, call_id="c")
    assert server.requests == []


@pytest.mark.parametrize("value", [2**53 + 1, 2**64, -(2**63) - 1, 10**30])
async def test_integers_of_any_size_are_sent_as_they_are(server: Server, executor: HttpExecutor, value: int) -> None:
    server.answers = [answer(json.dumps(value).encode())]
    assert await executor.call("t", {"a": value}, call_id="c") == value
    assert server.requests[0][2]["args"] == {"a": value}


async def test_an_endpoint_that_is_down_is_retryable(client: httpx2.AsyncClient) -> None:
    executor = HttpExecutor({"type": "http", "url": "http://127.0.0.1:9/"}, client)
    with pytest.raises(ToolError, match="cannot be reached") as raised:
        await executor.call("t", {}, call_id="c")
    assert raised.value.retryable
    assert not raised.value.sent


async def test_a_redirect_on_the_same_origin_is_followed(server: Server, executor: HttpExecutor) -> None:
    server.answers = [answer(b"", status="307 Moved", Location="/run/"), answer(b"1")]
    assert await executor.call("t", {"a": 1}, call_id="c") == 1
    assert [line for line, _, _ in server.requests] == ["POST /run?key=secret HTTP/1.1", "POST /run/ HTTP/1.1"]
    assert server.requests[0][2] == server.requests[1][2]


@pytest.mark.parametrize(
    ("status", "location"),
    [("307 Moved", "http://localhost:{port}/run"), ("308 Moved", "https://127.0.0.1:{port}/"), ("302 Found", "/other")],
    ids=["other host", "other scheme", "would become a GET"],
)
async def test_no_other_redirect_is_followed(
    server: Server, executor: HttpExecutor, status: str, location: str
) -> None:
    server.answers = [answer(b"", status=status, Location=location.format(port=server.port))]
    with pytest.raises(ToolError, match="redirect, which is not followed"):
        await executor.call("t", {}, call_id="c")
    assert len(server.requests) == 1


async def test_redirects_without_end_are_an_error(server: Server, executor: HttpExecutor) -> None:
    server.answers = [answer(b"", status="307 Moved", Location="/run")] * 10
    with pytest.raises(ToolError, match="redirected more than 3 times"):
        await executor.call("t", {}, call_id="c")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"type": "http"}, "executor.url: Field required"),
        (
            {"type": "http", "url": "ftp://x/"},
            "executor.url: must be an http or https URL with a host, such as https://",
        ),
        ({"type": "http", "url": "tools/run"}, "executor.url: must be an http or https URL with a host"),
        ({"type": "http", "url": "http://secret:secret"}, "executor.url: must be an http or https URL with a host"),
        ({"type": "grpc", "url": "http://x/"}, "executor.type: "),
        ({"type": "http", "url": "http://x/", "retries": 1}, "executor.retries: "),
        ({"type": "http", "url": "http://x/", "headers": {"A": "b\r\nC: d"}}, "executor.headers.A: "),
        ({"type": "http", "url": "http://x/", "headers": {"A b": "c"}}, "executor.headers.A b."),
    ],
    ids=str,
)
async def test_an_executor_that_does_not_fit_is_refused_by_field(
    client: httpx2.AsyncClient, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(SourceError) as raised:
        HttpExecutor(wrong, client)
    assert str(raised.value).startswith(words)
