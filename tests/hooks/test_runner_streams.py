"""What streams of placeholder sessions share with whole answers, now that a loop's Runner makes them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http

from store.base import StoreUnavailable
from tests.hooks.proxied import Proxied, answer, chunk, read_message, requests, serving

WHOLE = "/v1beta/models/gemini-3-flash:generateContent"
STREAM = "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse"
ASKED = {"contents": [{"role": "user", "parts": [{"text": "hi there"}]}]}


def document(*parts: Any, finish: str | None = "STOP") -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({} if finish is None else {"finishReason": finish})]}


def event(*parts: Any, finish: str | None = None) -> bytes:
    return b"data: %b\r\n\r\n" % json.dumps(document(*parts, finish=finish)).encode()


CALL = {"functionCall": {"name": "get_weather", "args": {"secret": 1}}}


class Upstream:
    """Gives the same answer to every request. `asked`: their bodies."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.data = json.dumps(document).encode()
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for head, body in requests(reader):
            self.asked.append(json.loads(body))
            streams = b"alt=sse" in head
            writer.write(answer(b"data: %b\r\n\r\n" % self.data, "text/event-stream") if streams else answer(self.data))
            await writer.drain()


# --- no executor, no further request ----------------------------------------------------------------------------------

WRONG = {
    "of an unknown tool": document({"functionCall": {"name": "nope", "args": {}}}),
    "malformed": {
        "candidates": [{"content": {"role": "model"}, "finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]
    },
}


@pytest.mark.parametrize("path", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_wrong_call_costs_no_further_request_if_no_tool_can_be_run(
    tmp_path: Path, path: str, wrong: dict[str, Any]
) -> None:
    upstream = Upstream(wrong)
    async with serving(upstream) as url, Proxied(tmp_path, url, delivery="auto") as proxied, proxied.client() as client:
        await proxied.tools("get_weather")
        await client.post(proxied.reverse + path, json=ASKED)
    assert len(upstream.asked) == 1


@pytest.mark.parametrize("path", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("delivery", ["placeholder", "passthrough", "auto"])
async def test_the_only_round_may_call_tools_that_the_proxy_does_not_run(
    tmp_path: Path, delivery: str, path: str
) -> None:
    upstream = Upstream(document(CALL))
    async with (
        serving(upstream) as url,
        Proxied(tmp_path, url, delivery=delivery, max_rounds="1") as proxied,
        proxied.client() as client,
    ):
        await proxied.tools("get_weather")
        await client.post(proxied.reverse + path, json=ASKED)
    (asked,) = upstream.asked
    assert asked.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode") != "NONE"


# --- scripts that put another response in place -----------------------------------------------------------------------


class Copies:
    def responseheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response is not None:
            flow.response = flow.response.copy()
            flow.response.stream = True


class Makes:
    def responseheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response is not None:
            flow.response = http.Response.make(200, b"", {"content-type": "application/json"})
            flow.response.stream = lambda data: data


@pytest.mark.parametrize(("path", "script"), [(WHOLE, Copies), (WHOLE, Makes), (STREAM, Copies)])
async def test_a_script_that_replaces_and_streams_a_response_lets_no_call_out(
    tmp_path: Path, path: str, script: type[Copies | Makes]
) -> None:
    upstream = Upstream(document(CALL))
    async with (
        serving(upstream) as url,
        Proxied(tmp_path, url, late=[script()]) as proxied,
        proxied.client() as client,
    ):
        await proxied.tools("get_weather")
        got = await client.post(proxied.reverse + path, json=ASKED)
    assert "secret" not in got.text
    assert "Tool call completed: get_weather" in got.text


# --- an answer that has ended -----------------------------------------------------------------------------------------


async def test_a_stream_that_ends_with_an_error_does_not_wait_for_the_upstream(tmp_path: Path) -> None:
    has_gone = asyncio.Event()

    async def goes_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + chunk(event({"text": "Sure. "})) + chunk(event(CALL)))
        await writer.drain()
        await reader.read()  # until the proxy hangs up
        has_gone.set()

    async def fails(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("on purpose")

    async with serving(goes_on) as url, Proxied(tmp_path, url) as proxied, proxied.client() as client:
        await proxied.tools("get_weather")
        proxied.runtime.store.save_turn = fails  # type: ignore[method-assign]
        async with asyncio.timeout(20):
            got = await client.post(proxied.reverse + STREAM, json=ASKED)
            await has_gone.wait()
    assert got.text.startswith(event({"text": "Sure. "}).decode())
    assert '"UNAVAILABLE"' in got.text
    assert "secret" not in got.text


CHAT = "/v1beta/openai/chat/completions"
TOOL_CALL = {
    "index": 0,
    "id": "c1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"secret":1}'},
}
CHOICE = {"index": 0, "delta": {"role": "assistant", "tool_calls": [TOOL_CALL]}, "finish_reason": "tool_calls"}
COMPLETION = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [CHOICE]}
DONE = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(COMPLETION).encode()
CHUNKED = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "kind", "pieces"),
    [
        (WHOLE, "application/json", [json.dumps(document(CALL)).encode(), b""]),
        (STREAM, "text/event-stream", [event(CALL, finish="STOP"), b""]),
        (CHAT, "text/event-stream", [DONE, b""]),
        (CHAT, "text/event-stream", [DONE]),
    ],
    ids=["whole", "stream", "chat completions", "[DONE] without a last chunk"],
)
async def test_an_answer_ends_although_its_connection_stays_open(
    tmp_path: Path, path: str, kind: str, pieces: list[bytes]
) -> None:
    async def stays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for _ in requests(reader):
            writer.write(CHUNKED.format(kind).encode() + b"".join(map(chunk, pieces)))
            await writer.drain()

    chat = {"model": "gemini-3-flash", "stream": True, "messages": [{"role": "user", "content": "hi there"}]}
    async with serving(stays) as url, Proxied(tmp_path, url) as proxied, proxied.client() as client:
        await proxied.tools("get_weather")
        async with asyncio.timeout(20):
            got = await client.post(proxied.reverse + path, json=chat if path == CHAT else ASKED)
    assert "Tool call completed: get_weather" in got.text
    assert "secret" not in got.text


# --- scripts that make a request unreadable ---------------------------------------------------------------------------


class Breaks:
    """A script behind the addon. `how`: what it does to the request."""

    def __init__(self, how: str) -> None:
        self.how = how

    def request(self, flow: http.HTTPFlow) -> None:
        body = flow.request.data.content
        assert body is not None
        if self.how == "encoding":
            flow.request.headers["content-encoding"] = "br"
        elif self.how == "twice":
            flow.request.content = body[:-1] + b',"request":{},"contents":[],"messages":[]}'
        else:
            flow.request.content = b"no JSON"


CODE_ASSIST = "/v1internal:streamGenerateContent?alt=sse"
WRAPPED = {"model": "gemini-3-flash", "project": "p", "request": ASKED}
MESSAGES = {"model": "gemini-3-flash", "messages": [{"role": "user", "content": "hi there"}]}


@pytest.mark.parametrize("how", ["encoding", "twice", "text"])
@pytest.mark.parametrize(
    ("path", "asked"), [(WHOLE, ASKED), (STREAM, ASKED), (CHAT, MESSAGES), (CODE_ASSIST, WRAPPED)], ids=str
)
async def test_a_request_that_a_script_makes_unreadable_lets_no_call_out(
    tmp_path: Path, how: str, path: str, asked: dict[str, Any]
) -> None:
    wrapped = {"response": document(CALL)} if path == CODE_ASSIST else document(CALL)
    data = json.dumps({**COMPLETION, "choices": [CHOICE | {"message": CHOICE["delta"]}]} if path == CHAT else wrapped)
    asked_for: list[bytes] = []

    async def calls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for _, body in requests(reader):
            asked_for.append(body)
            streams = "alt=sse" in path
            writer.write(answer(f"data: {data}\n\n".encode() if streams else data.encode()))
            await writer.drain()

    script = Breaks(how)
    async with serving(calls) as url, Proxied(tmp_path, url, late=[script]) as proxied, proxied.client() as client:
        await proxied.tools("get_weather")
        got = await client.post(proxied.reverse + path, json=asked)
        assert "secret" not in got.text
        if path != WHOLE:
            error = got.json()[0]["error"] if path == CODE_ASSIST else got.json()["error"]
            assert (got.status_code, error["status"]) == (400, "INVALID_ARGUMENT")
            assert "another addon made the request unreadable" in error["message"]
            assert asked_for == []
