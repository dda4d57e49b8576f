"""A message of a Live connection that is longer than it may be ends the connection, and costs no memory."""

import asyncio
import contextlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http
from mitmproxy.websocket import WebSocketMessage
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.hooks.proxied import Proxied
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

LIVE = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
SETUP = json.dumps({"setup": {"model": "models/gemini-live-2.5-flash-preview"}})
CALL = json.dumps({"toolCall": {"functionCalls": [{"id": "f1", "name": "get_weather", "args": {}}]}})
AUDIO = json.dumps({"realtimeInput": {"audio": {"data": "A" * 8000}}})
MOST = 20_000
BOMB = b" " * 64 * 1024 * 1024


class Service:
    """Answers a setup, and then does what the client's first message names."""

    def __init__(self) -> None:
        self.closed: list[int | None] = []
        self.heard: list[str | bytes] = []
        self.says: Iterable[Any] = ()

    async def __call__(self, client: ServerConnection) -> None:
        try:
            await client.recv()
            await client.send('{"setupComplete": {}}')
            for one in self.says:
                await client.send(one)
            async for message in client:
                self.heard.append(message)
        except ConnectionClosed:
            pass
        finally:
            await client.wait_closed()
            self.closed.append(client.close_code)


@pytest.fixture
def service() -> Service:
    return Service()


class Seen:
    """A script that sees what mitmproxy keeps of a connection. `clears`: and keeps nothing."""

    messages: list[WebSocketMessage]
    clears = False

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        if self.clears:
            self.messages.clear()

    def websocket_start(self, flow: http.HTTPFlow) -> None:
        assert flow.websocket is not None
        self.messages = flow.websocket.messages


@pytest.fixture
def watcher() -> Seen:
    return Seen()


@pytest.fixture(params=["tools", "no tools"])
async def proxied(
    request: pytest.FixtureRequest, service: Service, watcher: Seen, tmp_path: Path
) -> AsyncIterator[Proxied]:
    limits: dict[str, Any] = {"max_event": str(MOST), "max_answer": str(4 * MOST)}
    async with serve(service, "127.0.0.1", 0, max_size=None) as server:
        url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with Proxied(tmp_path, url, late=[watcher], **limits) as proxied:
            if request.param == "tools":
                await proxied.tools("get_weather")
            yield proxied


async def opened(proxied: Proxied, path: str = LIVE, **how: Any) -> ClientConnection:
    made = await connect(proxied.reverse.replace("http", "ws") + path, proxy=None, max_size=None, **how)
    await made.send(SETUP)
    assert b"setupComplete" in await made.recv(decode=False)
    return made


async def closing(client: ClientConnection) -> tuple[int | None, str | None]:
    async with asyncio.timeout(20):
        await client.wait_closed()
    return client.close_code, client.close_reason


LONG = "x" * (MOST + 1)
TOO_LONG: dict[str, Any] = {
    "text": LONG,
    "binary": LONG.encode(),
    "pieces": ["x" * 1000] * 30,
    "tiny pieces": ["x"] * 3000,
}


@pytest.mark.parametrize("by", ["client", "service"])
async def test_a_message_that_is_too_long_ends_the_connection(proxied: Proxied, service: Service, by: str) -> None:
    for form, message in TOO_LONG.items():
        for compression in ("deflate", None):
            service.says = [message] if by == "service" else ()
            client = await opened(proxied, compression=compression)
            if by == "client":
                with contextlib.suppress(ConnectionClosed):
                    await client.send(message)
            words = f"toolgraft: a message has more than {MOST} bytes (graft_max_event)"
            assert await closing(client) == (1009, words), (form, compression)
            await until(lambda: service.closed == [1009])
            service.closed.clear()
    assert service.heard == []


async def test_a_message_that_unpacks_to_more_than_there_may_be_is_not_unpacked(
    proxied: Proxied, service: Service
) -> None:
    client = await opened(proxied)
    tracemalloc.start()
    try:
        with contextlib.suppress(ConnectionClosed):
            await client.send(BOMB)
        assert (await closing(client))[0] == 1009
        assert tracemalloc.get_traced_memory()[1] < len(BOMB) // 2
    finally:
        tracemalloc.stop()


async def test_messages_that_fit_pass(proxied: Proxied, service: Service) -> None:
    service.says = ["y" * (MOST - 100)]
    async with await opened(proxied) as client:
        await client.send("x" * (MOST - 100))
        assert await client.recv() == service.says[0]
        await until(lambda: service.heard == ["x" * (MOST - 100)])


async def test_another_websocket_is_not_held_to_it(proxied: Proxied, service: Service) -> None:
    service.says = [LONG]
    async with await opened(proxied, "/chat") as client:
        assert await client.recv() == LONG


@pytest.mark.parametrize("proxied", ["tools"], indirect=True)
@pytest.mark.parametrize("message", [AUDIO, '{"realtimeInput": {}}'], ids=["long", "many"])
async def test_the_input_held_back_while_the_model_waits_is_bounded(
    proxied: Proxied, service: Service, message: str
) -> None:
    service.says = [CALL]
    client = await opened(proxied)
    await until(lambda: bool(proxied.runtime.store._calls))  # type: ignore[attr-defined]
    with contextlib.suppress(ConnectionClosed):
        for _ in range(200):
            await client.send(message)
    code, reason = await closing(client)
    assert code == 1009
    assert reason is not None
    assert "graft_max_event" in reason


async def test_the_newest_messages_of_a_long_connection_are_kept(
    proxied: Proxied, service: Service, watcher: Seen
) -> None:
    async with await opened(proxied) as client:
        for number in range(40):
            await client.send(f"{number:02d}" + "x" * 5000)
        await until(lambda: len(service.heard) == 40)
        kept = [message.content for message in watcher.messages]
        assert kept[-1].startswith(b"39")
        assert sum(map(len, kept)) <= 4 * MOST


async def test_a_script_that_forgets_messages_breaks_nothing(proxied: Proxied, service: Service, watcher: Seen) -> None:
    watcher.clears = True
    async with asyncio.timeout(20), await opened(proxied) as client:
        for number in range(40):
            await client.send(f"{number:02d}" + "x" * 5000)
        await until(lambda: len(service.heard) == 40)
