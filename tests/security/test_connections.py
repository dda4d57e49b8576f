"""Clients that open connections and say nothing, or too much, keep nobody from the control API."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from addon.control.app import create_app
from addon.monitoring.metrics import Metrics
from addon.process import control_connections, raise_descriptor_limit
from addon.settings import Settings
from addon.web.server import BoundedProtocol, Bounds, ControlServer, bind
from store.factory import open_url

pytestmark = pytest.mark.e2e

TOKEN = "a-token-for-tests"
ASK = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
POLL = b"GET /v1/calls?wait=60 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n" % TOKEN.encode()


class Connections:
    """Raw connections to a server with few bounds."""

    def __init__(self, server: ControlServer) -> None:
        self.server = server
        self.port = int(server.url.rpartition(":")[2])
        self._open: list[asyncio.StreamWriter] = []

    async def open(self, *sent: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._open.append(writer)
        for piece in sent:
            writer.write(piece)
        return reader

    async def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()


@pytest.fixture
def bounds() -> Bounds:
    return Bounds(connections=8, head=4096, seconds=30)


@pytest.fixture
async def connections(bounds: Bounds, tmp_path: Path) -> AsyncIterator[Connections]:
    store = open_url("memory://", ttl=1e6)
    await store.open()
    app = create_app(store=store, settings=Settings(state=tmp_path), token=TOKEN, metrics=Metrics(), version="1")
    server = ControlServer(app, bind("127.0.0.1", 0), bounds=bounds)
    await server.start()
    connections = Connections(server)
    yield connections
    await connections.close()
    await server.stop()
    await store.close()


async def status(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return (await reader.readline())[9:12]


@pytest.mark.parametrize("pieces", [(), (ASK[:20],), (ASK,)], ids=["nothing", "half a head", "a request before"])
async def test_idle_connections_give_way_to_new_ones(connections: Connections, pieces: tuple[bytes, ...]) -> None:
    idle = [await connections.open(*pieces) for _ in range(100)]
    assert await status(await connections.open(ASK)) == b"200"
    async with asyncio.timeout(10):
        for reader in idle[:80]:
            with contextlib.suppress(ConnectionError):
                await reader.read()


async def test_a_new_connection_is_refused_if_none_is_idle(connections: Connections) -> None:
    polls = [await connections.open(POLL) for _ in range(8)]
    assert await status(await connections.open(ASK)) == b"503"
    assert not any(poll.at_eof() for poll in polls)


async def test_an_answer_that_is_made_at_once_leaves_the_connection_idle(connections: Connections) -> None:
    """In mitmproxy's event loop a task begins at once: the request is answered before its bytes are all looked at."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    reader = await connections.open(ASK.replace(b"healthz", b"healthz/live"))
    async with asyncio.timeout(10):
        await reader.readuntil(b"}")
    (protocol,) = connections.server._server.server_state.connections
    assert isinstance(protocol, BoundedProtocol)
    assert protocol._timer is None


@pytest.mark.parametrize("before", [b"", ASK], ids=["first", "later"])
@pytest.mark.parametrize(
    "sent",
    [(b"GET /" + b"x" * 9000,), (b"GET / HTTP/1.1\r\nx: " + b"x" * 9000,), (b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 2000)],
    ids=["line", "header", "headers"],
)
async def test_a_head_that_is_too_large_is_refused(connections: Connections, before: bytes, sent: Any) -> None:
    reader = await connections.open(before)
    if before:
        assert await status(reader) == b"200"
    for piece in (*sent, b"\r\n\r\n"):
        connections._open[-1].write(piece)
    async with asyncio.timeout(10):
        assert b"HTTP/1.1 431 " in await reader.read()


async def test_a_body_of_two_lengths_is_refused_with_all_that_follows(connections: Connections) -> None:
    head = b"POST /v1/tokens HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
    reader = await connections.open(head + b"0\r\n\r\n" + ASK)
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


class TestSlow:
    @pytest.fixture
    def bounds(self) -> Bounds:
        return Bounds(seconds=0.2)

    @pytest.mark.parametrize("sent", [b"", b"GET", ASK[:-2]])
    @pytest.mark.parametrize("before", [b"", ASK], ids=["first", "later"])
    async def test_a_head_that_does_not_come_is_not_waited_for(
        self, connections: Connections, before: bytes, sent: bytes
    ) -> None:
        if before and not sent:
            return  # a connection that is kept has its own time
        reader = await connections.open(before)
        if before:
            assert await status(reader) == b"200"
        connections._open[-1].write(sent)
        async with asyncio.timeout(10):
            assert b"HTTP/1.1 408 " in await reader.read()

    async def test_an_answer_that_takes_long_is_waited_for(self, connections: Connections) -> None:
        poll = await connections.open(POLL)
        slow = await connections.open()
        assert await status(slow) == b"408"
        assert not poll.at_eof()


@pytest.mark.parametrize(
    ("most", "descriptors", "connections"),
    [(4096, 65536, 4096), (4096, 1024, 128), (100, 65536, 100), (4096, 64, 8)],
)
def test_connections_leave_descriptors_for_everything_else(most: int, descriptors: int, connections: int) -> None:
    assert control_connections(most, descriptors) == connections


def test_the_soft_limit_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        assert raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
