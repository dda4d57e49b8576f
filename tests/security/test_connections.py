"""Clients that open connections and say nothing, or too much, keep nobody from the control API."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from addon.control.app import create_app
from addon.descriptors import connection_limits, raise_descriptor_limit
from addon.hooks.compose import Toolgraft
from addon.hooks.connections import Connections as ProxyConnections
from addon.metrics import Metrics
from addon.settings import Settings
from addon.web.connections import Bounds
from addon.web.server import ControlServer, bind
from store.factory import open_url
from tests.hooks.proxied import Proxied, serving
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e

TOKEN = "a-token-for-tests"
ASK = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
POLL = b"GET /v1/calls?wait=60 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n" % TOKEN.encode()


class Connections:
    """Raw connections to a server with few bounds."""

    def __init__(self, server: ControlServer) -> None:
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


async def test_where_none_is_idle_a_new_one_is_refused(connections: Connections) -> None:
    polls = [await connections.open(POLL) for _ in range(8)]
    assert await status(await connections.open(ASK)) == b"503"
    assert not any(poll.at_eof() for poll in polls)


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


class TestSlow:
    @pytest.fixture
    def bounds(self) -> Bounds:
        return Bounds(seconds=0.2)

    @pytest.mark.parametrize("sent", [b"", b"GET", b"\r\n", ASK[:-2]])
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
    ("most", "descriptors", "control", "proxy"),
    [(4096, 65536, 4096, 4096), (4096, 1024, 128, 384), (100, 65536, 100, 100), (4096, 256, 32, 48), (4096, 64, 8, 4)],
)
def test_connections_leave_descriptors_for_everything_else(
    most: int, descriptors: int, control: int, proxy: int
) -> None:
    assert connection_limits(most, descriptors) == (control, proxy)


def test_the_soft_limit_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        assert raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_clients_of_the_proxy_beyond_the_bound_are_closed(tmp_path: Path) -> None:
    async with serving(answer) as url, Proxied(tmp_path, url, max_connections="8") as proxied:
        port = int(proxied.reverse.rpartition(":")[2])
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        try:
            async with asyncio.timeout(10):
                for reader, _ in clients[8:]:
                    assert await reader.read() == b""
            assert not any(reader.at_eof() for reader, _ in clients[:8])
            clients[0][1].close()
            await until(lambda: len(connections_of(proxied)._open) == 7)
            clients.append(await asyncio.open_connection("127.0.0.1", port))
            await until(lambda: len(connections_of(proxied)._open) == 8)
        finally:
            for _, writer in clients:
                writer.close()


def connections_of(proxied: Proxied) -> ProxyConnections:
    assert isinstance(proxied.addon, Toolgraft)
    return next(part for part in proxied.addon.parts if isinstance(part, ProxyConnections))


async def test_where_descriptors_have_run_out_there_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    async with serving(answer) as url, Proxied(tmp_path, url):
        error = OSError(24, "Too many open files")
        for _ in range(1000):
            message = "socket.accept() out of system resource"
            loop.call_exception_handler({"message": message, "exception": error})
        loop.set_exception_handler(None)
    assert len([record for record in caplog.records if "no file descriptors left" in record.getMessage()]) == 1
    assert "Traceback" not in caplog.text
