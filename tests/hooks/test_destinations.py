"""Loops and redirects inside mitmproxy's own machinery: over real connections, in this process."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy import http
from mitmproxy.connection import Server

from addon.graft.exchange import Exchange
from addon.loop.runner import Runner
from tests.hooks.harness import GOOGLE
from tests.hooks.proxied import Proxied, answer, requests, serving
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

PATH = "/v1beta/models/gemini-3-flash:generateContent"
STREAM = PATH.replace("generateContent", "streamGenerateContent?alt=sse")
BODY = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
TOOLS = '''
import asyncio
BEGUN, ENDED = [], []
async def lookup(what: str = "it") -> str:
    """Look it up."""
    return f"found {what}"
async def hang() -> str:
    """Take for ever."""
    BEGUN.append(1)
    try:
        await asyncio.Event().wait()
    finally:
        ENDED.append(1)
    return ""
'''

Json = dict[str, Any]
Start = Callable[..., Awaitable[Proxied]]


class Model:
    """An upstream that calls the tool which the question names, and then says what it was told. `heard`: the requests,
    each with the number of its connection; `closes`: on which of a connection's requests it closes without an answer,
    or with the beginning of one."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes, Json]] = []
        self.closes: dict[tuple[int, int], bytes] = {}
        self.size = 0
        self._connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection, number = self._connections, 0
        async for head, body in requests(reader):
            number += 1
            if (scripted := self.closes.get((connection, number))) is not None:
                writer.write(scripted)
                await writer.drain()
                return
            asked = json.loads(body or b"{}")
            self.heard.append((connection, head, asked))
            writer.write(self.answer(head, asked))
            await writer.drain()

    def answer(self, head: bytes, asked: Json) -> bytes:
        last = (asked.get("contents") or [{"parts": [{}]}])[-1]["parts"][0]
        words = str(last.get("text", "")).split()
        parts: list[Json] = [{"text": "said " + json.dumps(last) + "x" * self.size}]
        if words[:1] == ["call"] and asked.get("tools"):
            parts = [{"functionCall": {"name": words[1], "args": {}}}]
        reply = {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}]}
        document = json.dumps(reply).encode()
        if b"alt=sse" in head:
            return answer(b"data: " + document + b"\r\n\r\n", "text/event-stream")
        return answer(document)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def start(tmp_path: Path, model: Model) -> AsyncIterator[Start]:
    """Starts a proxy with tools."""
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    async with AsyncExitStack() as stack:

        async def starts(**more: Any) -> Proxied:
            url = await stack.enter_async_context(serving(model))
            more.setdefault("redirect", [f"{GOOGLE}={url}"])
            return await stack.enter_async_context(Proxied(tmp_path, url, tools=[str(file)], **more))

        yield starts


def asks(words: str) -> Json:
    return {"contents": [{"role": "user", "parts": [{"text": words}]}]}


class Notes:
    """Notes the flows of each hook, as they are in it."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.flows: list[http.HTTPFlow] = []

    def request(self, flow: http.HTTPFlow) -> None:
        self.urls.append(flow.request.url)
        self.flows.append(flow)

    def response(self, flow: http.HTTPFlow) -> None:
        self.urls.append(flow.request.url)


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, STREAM])
async def test_loops_of_one_http_2_connection_do_not_disturb_each_other(start: Start, model: Model, path: str) -> None:
    proxied = await start()
    async with proxied.client(http2=True, proxy=proxied.regular) as client:
        url = f"https://{GOOGLE}{path}"
        hanging = asyncio.ensure_future(client.post(url, json=asks("call hang")))
        await until(lambda: len(model.heard) == 1)
        answers = await asyncio.gather(*(client.post(url, json=asks("call lookup")) for _ in range(5)))
        assert {one.http_version for one in answers} == {"HTTP/2"}
        assert all("found it" in one.text for one in answers)
        assert len(proxied.runtime.loops) == 1
        hanging.cancel()
        await asyncio.wait({hanging})
        assert "found it" in (await client.post(url, json=asks("call lookup"))).text
    await until(lambda: not proxied.runtime.loops)


async def test_a_client_that_hangs_up_ends_its_loop_and_no_other(start: Start, model: Model) -> None:
    proxied = await start()
    async with proxied.client() as other:
        staying = asyncio.ensure_future(other.post(f"{proxied.reverse}{PATH}", json=asks("call hang")))
        async with proxied.client() as client:
            going = asyncio.ensure_future(client.post(f"{proxied.reverse}{PATH}", json=asks("call hang")))
            await until(lambda: len(model.heard) == 2)
            assert len(proxied.runtime.loops) == 2
            going.cancel()
            await asyncio.wait({going})
        await until(lambda: len(proxied.runtime.loops) == 1)
        assert not staying.done()
        staying.cancel()
        await asyncio.wait({staying})


async def test_a_flow_that_is_replayed_is_looped_again(start: Start, model: Model) -> None:
    notes = Notes()
    proxied = await start(late=[notes])
    async with proxied.client() as client:
        await client.post(f"{proxied.reverse}{PATH}", json=asks("call lookup"))
    replay = notes.flows[0].copy()
    proxied.master.commands.call("replay.client", [replay])
    await until(lambda: len(model.heard) == 4 and replay.response is not None and bool(replay.response.content))
    assert replay.response is not None
    assert b"found it" in (replay.response.content or b"")


async def test_an_answer_that_is_too_large_for_mitmproxy_is_an_error(start: Start, model: Model) -> None:
    proxied = await start(mitm={"body_size_limit": "20k"})
    model.size = 50_000
    async with proxied.client() as client:
        got = await client.post(f"{proxied.reverse}{PATH}", json=asks("call lookup"))
        assert got.status_code == 502
        model.size = 0
        assert "found it" in (await client.post(f"{proxied.reverse}{PATH}", json=asks("call lookup"))).text
    await until(lambda: not proxied.runtime.loops)


# --- other addons -----------------------------------------------------------------------------------------------------


class Holds:
    """Intercepts a loop's own requests, as a user does in mitmweb, and changes them before they go on."""

    def __init__(self) -> None:
        self.flows: list[http.HTTPFlow] = []

    def request(self, flow: http.HTTPFlow) -> None:
        if "graft" in flow.metadata:
            flow.intercept()
            self.flows.append(flow)


async def test_a_request_of_a_loop_that_is_intercepted_waits_and_goes_on_as_it_was_changed(
    start: Start, model: Model
) -> None:
    holds = Holds()
    proxied = await start(late=[holds])
    async with proxied.client() as client:
        asking = asyncio.ensure_future(client.post(f"{proxied.reverse}{PATH}", json=asks("call lookup")))
        for number in (1, 2):
            await until(lambda number=number: len(holds.flows) == number)  # type: ignore[misc]
            assert len(model.heard) == number - 1
            holds.flows[-1].request.headers["x-changed"] = "by hand"
            holds.flows[-1].resume()
        assert "found it" in (await asking).text
    assert all(b"x-changed: by hand" in head for _, head, _ in model.heard)


async def test_a_mistake_in_the_proxy_is_an_error_for_the_client(
    start: Start, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proxied = await start()
    monkeypatch.setattr(Runner, "__init__", lambda *arguments: 1 / 0)
    async with proxied.client() as client:
        got = await client.post(f"{proxied.reverse}{PATH}", json=asks("call lookup"))
    assert got.status_code == 502
    assert "a mistake in the proxy itself" in got.text
    assert "ZeroDivisionError" in caplog.text
    assert model.heard == []


class Answers:
    """Answers the client's flows itself, or kills them."""

    def __init__(self, *, kills: bool = False) -> None:
        self.kills = kills

    def request(self, flow: http.HTTPFlow) -> None:
        if "graft" in flow.metadata:
            return
        if self.kills:
            flow.kill()
        else:
            flow.response = http.Response.make(200, b"mine")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is kept until someone looks for circles is kept for long in a busy proxy."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def kept() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, (Runner, Exchange))]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kills", [False, True], ids=["answers", "kills"])
async def test_nothing_is_kept_of_flows_that_another_addon_answers(start: Start, model: Model, kills: bool) -> None:
    before = len(kept())
    proxied = await start(late=[Answers(kills=kills)])
    async with proxied.client() as client:
        for _ in range(60):
            try:
                got = await client.post(f"{proxied.reverse}{PATH}", json=asks("call lookup " + "x" * 10_000))
                assert got.text == "mine"
            except httpx2.RemoteProtocolError:
                assert kills
    await until(lambda: len(kept()) == before)
    assert model.heard == []
    assert not proxied.runtime.loops._answers


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, asks("call lookup")),
        (STREAM, asks("call lookup")),
        ("/v1beta/interactions", {"model": "gemini-3-flash-preview", "input": "hi"}),
    ],
    ids=["JSON", "a stream", "an interaction that says no status"],
)
async def test_nothing_is_kept_of_loops_that_have_ended(start: Start, model: Model, path: str, body: Json) -> None:
    before = len(kept())
    proxied = await start()
    async with proxied.client() as client:
        for _ in range(20):
            assert (await client.post(f"{proxied.reverse}{path}", json=body)).status_code == 200
    await until(lambda: len(kept()) == before)
    assert len(model.heard) >= 20


# --- redirects --------------------------------------------------------------------------------------------------------


class Streams:
    """Wants requests to stream."""

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        flow.request.stream = True


@pytest.mark.parametrize("late", [[], [Streams()]], ids=["whole", "streamed"])
async def test_a_redirect_is_seen_by_no_hook(start: Start, model: Model, late: list[object]) -> None:
    notes = Notes()
    proxied = await start(late=[*late, notes])
    async with proxied.client(proxy=proxied.regular) as client:
        url = f"http://{GOOGLE}/v1beta/files"
        for _ in range(2):
            assert (await client.post(url, json={"some": "thing"})).status_code == 200
    assert set(notes.urls) == {url}
    assert [body for _, _, body in model.heard] == [{"some": "thing"}] * 2
    host = model.heard[0][1].lower().split(b"\r\nhost: ")[1].split(b"\r\n")[0]
    assert host.startswith(b"127.0.0.1:")


async def test_a_redirect_to_nobody_is_a_502(start: Start) -> None:
    notes = Notes()
    proxied = await start(redirect=[f"{GOOGLE}=http://127.0.0.1:9"], late=[notes])
    async with proxied.client(proxy=proxied.regular) as client:
        assert (await client.get(f"http://{GOOGLE}/v1beta/files")).status_code == 502
    assert notes.flows[0].request.url == f"http://{GOOGLE}/v1beta/files"


async def test_loops_go_through_the_next_proxy_with_its_credentials(start: Start, model: Model) -> None:
    proxied = await start(redirect=[], mitm={"upstream_auth": "someone:secret"})
    async with proxied.client(proxy=proxied.chained) as client:
        got = await client.post(f"http://{GOOGLE}{PATH}", json=asks("call lookup"))
    assert "found it" in got.text
    assert len(model.heard) == 2
    for _, head, _ in model.heard:
        assert head.startswith(f"POST http://{GOOGLE}{PATH} HTTP/1.1".encode())
        assert head.lower().count(b"\r\nproxy-authorization: basic ") == 1


class Reroutes:
    """Sends requests through another proxy, as scripts do by `via`."""

    def __init__(self, host: str, port: int) -> None:
        self.via = ("http", (host, port))

    def request(self, flow: http.HTTPFlow) -> None:
        flow.server_conn = Server(address=flow.server_conn.address, via=self.via)  # type: ignore[arg-type]


async def test_loops_go_through_the_proxy_that_a_script_chooses(start: Start, model: Model) -> None:
    async with serving(model) as url:
        host, port = url.removeprefix("http://").split(":")
        proxied = await start(redirect=[], late=[Reroutes(host, int(port))])
        async with proxied.client(proxy=proxied.regular) as client:
            got = await client.post(f"http://{GOOGLE}{PATH}", json=asks("call lookup"))
    assert "found it" in got.text
    assert all(head.startswith(f"POST http://{GOOGLE}".encode()) for _, head, _ in model.heard)


# --- kept connections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, STREAM])
async def test_a_kept_connection_that_closes_as_it_is_used_again_is_a_502_in_the_first_round(
    start: Start, model: Model, path: str
) -> None:
    """The server may have processed the request. The loop repeats that of a later round, as after any failure."""
    proxied = await start()
    model.closes = {(1, 2): b"", (2, 2): b""}  # in the second round of one loop, and in the first of another
    async with proxied.client() as client:
        answers = [await client.post(f"{proxied.reverse}{path}", json=asks("call lookup")) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 502, 200]
    assert ["found it" in one.text for one in answers] == [True, False, True]
    assert [connection for connection, _, _ in model.heard] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    "closes",
    [{(1, 1): b""}, {(1, 2): b"HTTP/1.1 200 OK\r\nconte"}],
    ids=["a new connection", "a head that has begun"],
)
async def test_any_other_closed_connection_is_an_error(
    start: Start, model: Model, closes: dict[tuple[int, int], bytes]
) -> None:
    proxied = await start()
    model.closes = closes
    async with proxied.client() as client:
        answers = [await client.post(f"{proxied.reverse}{PATH}", json=asks("hi")) for _ in range(max(closes)[1])]
        assert [one.status_code for one in answers] == [*[200] * (len(answers) - 1), 502]
    assert len(model.heard) == len(answers) - 1
