"""Error messages about MCP servers: by table, and from a server over HTTP."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import MCPError
from pydantic import ValidationError

from addon.tools.base import ToolError
from addon.tools.mcp_config import Server
from addon.tools.mcp_servers import McpSource
from addon.tools.mcp_transport import MAX_CHARACTERS, McpBounds, clean_message, describe_failure


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("no such city", "no such city"),
        ("two\n  lines", "two lines"),
        ("see https://user:secret@host.example:8/secret?key=secret now", "see https://host.example:8 now"),
        ("'http://h/secret' and http://h#secret", "'http://h' and http://h"),
        ("Redirect to https://other/secret not followed", "it redirects to another URL"),
        ("Failed to parse JSON response: secret", "its answer is not an MCP message"),
        ("Unexpected content type: text/secret", "its answer is not an MCP message"),
        ("Invalid structured content returned by tool t: secret", "its result does not fit the tool's outputSchema"),
        ("half \ud800", "half ?"),
        ("x" * 10_000, "x" * (MAX_CHARACTERS - 1) + "…"),
    ],
)
def test_a_message_is_one_line_without_anything_that_may_be_secret(message: str, words: str) -> None:
    assert clean_message(message).startswith(words)
    assert len(clean_message(message)) <= MAX_CHARACTERS
    assert "secret" not in clean_message(message)


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        mcp_types.Tool.model_validate({"name": "secret", "inputSchema": "secret"}, by_name=False)
    return raised.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MCPError(code=-1, message="its own words"), "its own words"),
        (httpx2.ConnectError("All connection attempts failed"), "All connection attempts failed"),
        (httpx2.ConnectError(""), "the connection failed"),
        (httpx2.RemoteProtocolError("illegal status line: bytearray(b'secret')"), "the connection broke"),
        (FileNotFoundError(2, "No such file or directory", "/secret/run"), "No such file or directory: run"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (TimeoutError(), "it did not answer in time"),
        (RuntimeError("No mutually supported version"), "No mutually supported version"),
        (RuntimeError(), "RuntimeError"),
        (LookupError("secret"), "LookupError"),
        (invalid(), "its answer is not an MCP message"),
        (ExceptionGroup("secret", [ExceptionGroup("secret", [MCPError(code=-1, message="this")])]), "this"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_told_in_words_without_what_was_sent_or_received(error: BaseException, words: str) -> None:
    assert describe_failure(error) == words


def rpc(message: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **more}).encode()


BAD: dict[str, tuple[bytes, str]] = {
    "401": (b"401 secret\r\ncontent-type: text/html", "http://127.0.0.1:{port} answered 401 Unauthorized"),
    "500": (
        b"500 secret\r\ncontent-type: application/json",
        "http://127.0.0.1:{port} answered 500 Internal Server Error",
    ),
    "redirect": (b"307 secret\r\nlocation: https://other.example/secret?key=secret", "it redirects to another URL, "),
    "no MCP": (b"200 OK\r\ncontent-type: application/json", "its answer is not an MCP message"),
    "kind": (b"200 OK\r\ncontent-type: text/html; secret", "its answer is not an MCP message"),
}


def fine_result() -> dict[str, Any]:
    return {"content": [], "structuredContent": {"a": "a" * 60 + "!"}}


class Odd:
    """An MCP server over HTTP with bad answers to calls if `bad` is set; `everything`: to all messages."""

    def __init__(self) -> None:
        self.bad = ""
        self.everything = False
        self.tools: list[dict[str, Any]] | None = None
        self.says = fine_result()
        self.headers = b""
        self.tool: dict[str, Any] = {"name": "t", "inputSchema": {"type": "object"}}
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                size = next((int(line.partition(":")[2]) for line in head if line.startswith("content-length:")), 0)
                body = await reader.readexactly(size)
                status, content = self.answer(json.loads(body) if body else {}, head[0])
                writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(content), content))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, message: dict[str, Any], line: str) -> tuple[bytes, bytes]:
        fine = b"200 OK\r\ncontent-type: application/json\r\nmcp-session-id: secret" + self.headers
        method = message.get("method")
        if self.bad and (self.everything or method == "tools/call"):
            return BAD[self.bad][0], b'{"secret": "secret"}'
        if method == "initialize":
            info = {"name": "x", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            return fine, rpc(message, result=result)
        if method == "tools/list":
            return fine, rpc(message, result={"tools": self.tools or [self.tool]})
        if method == "tools/call":
            reply = rpc(message, result=self.says)
            return fine, gzip.compress(reply) if b"gzip" in self.headers else reply
        if "id" in message:
            return b"404 Not Found", b""
        return (b"405 No", b"") if line.startswith("get") else (b"202 Accepted", b"")


@pytest.fixture
async def odd() -> AsyncIterator[Odd]:
    odd = Odd()
    server = await asyncio.start_server(odd.handle, "127.0.0.1", 0)
    odd.port = server.sockets[0].getsockname()[1]
    yield odd
    server.close()


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("bad", BAD)
async def test_errors_of_a_server_over_http_name_origin_and_status(
    odd: Odd, bad: str, everything: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("addon.tools.mcp_connection._MAX_DELAY", 0.01)
    url = f"http://user:secret@127.0.0.1:{odd.port}/secret?key=secret"
    if everything:
        odd.bad, odd.everything = bad, True
    with caplog.at_level(logging.INFO):
        async with McpSource("s", Server(url=url), start_timeout=5) as source:
            odd.bad = bad
            with pytest.raises(ToolError) as raised:
                async with asyncio.timeout(10):
                    await (source._connection.client() if everything else source.call("t", {}, call_id="c"))
    words = BAD[bad][1].format(port=odd.port)
    beginning = "MCP server 's' is down: " if everything else "MCP server 's': "
    assert str(raised.value).startswith(beginning + words)
    assert "secret" not in str(raised.value)
    assert "secret" not in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


@pytest.mark.parametrize(
    ("member", "fits"),
    [({"type": "string"}, True), ({"type": "integer"}, False), ({"pattern": "^(a|aa)+$"}, False)],
    ids=["fits", "misfits", "hard pattern"],
)
async def test_results_are_checked_against_the_schema(odd: Odd, member: dict[str, Any], fits: bool) -> None:
    odd.tool["outputSchema"] = {"type": "object", "properties": {"a": member}}
    async with McpSource("s", Server(url=f"http://127.0.0.1:{odd.port}/"), start_timeout=5) as source:
        async with asyncio.timeout(10):
            if fits:
                assert "a" in await source.call("t", {}, call_id="c")
                return
            with pytest.raises(ToolError, match=r"^MCP server 's': its result does not fit the tool's outputSchema$"):
                await source.call("t", {}, call_id="c")


async def test_a_schema_that_cannot_be_used_leaves_its_tool_out(odd: Odd, caplog: pytest.LogCaptureFixture) -> None:
    members = {"letters": {"pattern": r"\p{L}"}, "pattern": {"pattern": "("}, "type": {"type": "strnig"}}
    odd.tools = [
        {"name": name, "inputSchema": {"type": "object", "properties": {"a": member}}}
        for name, member in members.items()
    ]
    async with McpSource("s", Server(url=f"http://127.0.0.1:{odd.port}/"), start_timeout=5) as source:
        assert [tool.name for tool in await source.list_tools()] == ["letters", "pattern"]
    (left_out,) = [message for message in caplog.messages if "is left out" in message]
    assert "the tool 'type' is left out: inputSchema: `properties.a.type`: " in left_out
    (unchecked,) = [message for message in caplog.messages if "is not checked" in message]
    assert unchecked.startswith('the tool pattern: the pattern "(" in its schema is not supported')


async def test_the_messages_of_a_server_are_bounded(odd: Odd, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object"}
    odd.tools = [{"name": f"t{n}", "inputSchema": schema} for n in range(30)]
    odd.tools[3]["description"] = "x" * 3000
    server = Server(url=f"http://127.0.0.1:{odd.port}/")
    async with McpSource("s", server, start_timeout=5, bounds=McpBounds(tools=10, tool=2048, line=10_000)) as source:
        assert [tool.name for tool in await source.list_tools()] == [f"t{n}" for n in range(10) if n != 3]
        assert await source.call("t1", {}, call_id="c")
        odd.says = {"content": [{"type": "text", "text": "x" * 20_000}]}
        with pytest.raises(ToolError, match="MCP server 's': "):
            async with asyncio.timeout(10):
                await source.call("t1", {}, call_id="c")
    assert "it has more than 10 tools (graft_max_tools)" in caplog.text
    assert "'t3' is left out: it has more than 2048 bytes (graft_max_tool)" in caplog.text
    assert "of more than 10000 bytes (graft_max_line)" in caplog.text


async def test_a_server_that_packs_what_it_says_is_not_unpacked(odd: Odd) -> None:
    async with McpSource("s", Server(url=f"http://127.0.0.1:{odd.port}/"), start_timeout=5) as source:
        odd.headers = b"\r\ncontent-encoding: gzip"
        with pytest.raises(ToolError, match="MCP server 's': "):
            async with asyncio.timeout(10):
                await source.call("t", {}, call_id="c")
