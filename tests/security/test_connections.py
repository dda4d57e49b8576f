"""Clients that open connections and say nothing, or too much, keep nobody from the control API."""

import asyncio
import contextlib
import resource
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.events import StreamEnded
from mitmproxy import http

from addon.control.app import create_app
from addon.descriptors import connection_limits, raise_descriptor_limit
from addon.hooks.compose import Toolgraft
from addon.hooks.connection_limits import Connections as ProxyConnections
from addon.hooks.connection_state import is_in_use
from addon.metrics import Metrics
from addon.settings import Settings
from addon.web.server import ControlServer, bind
from addon.web.uvicorn_limits import BoundedProtocol, Bounds
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


CONNECT = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n"
REFUSED = b"CONNECT refused.test:443 HTTP/1.1\r\n\r\n"
SLOW = b"POST /slow HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
UPGRADE = (
    b"GET /socket HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
IN_USE = ("unanswered", "uploading", "a tunnel in use", "a tunnel after a refused one", "a WebSocket")


class Refuses:
    def http_connect(self, flow: http.HTTPFlow) -> None:
        if flow.request.host == "refused.test":
            flow.response = http.Response.make(403)


class Clients:
    """Raw connections to the ports of a proxy, whose upstream answers GET and nothing else. `silent`: a port at which a
    server says and closes nothing."""

    def __init__(self, proxied: Proxied, silent: int) -> None:
        self.proxied = proxied
        self.states = {
            "nothing": (b"",),
            "half a head": (ASK[:20],),
            "half a second head": (ASK, b"200 OK", ASK[:20]),
            "an idle tunnel": (CONNECT % 1, b"200 Connection established\r\n\r\n"),
            "half a head in a tunnel": (CONNECT % 1, b"200 Connection established\r\n\r\n", ASK[:-4]),
            "half a handshake": (CONNECT % 1, b"200 Connection established\r\n\r\n", HELLO),
            "kept": (ASK, b"200 OK"),
            "unanswered": (SLOW,),
            "uploading": (SLOW.replace(b": 0", b": 9") + b"1234",),
            "a tunnel in use": (CONNECT % silent, b"200 Connection established\r\n\r\n", b"\x00\x01"),
            "a tunnel after a refused one": (REFUSED, b" 403 ", CONNECT % silent, b"200 Connection", b"\x00\x01"),
            "a WebSocket": (UPGRADE, b"101 Switching Protocols\r\n"),
        }
        self._open: list[asyncio.StreamWriter] = []

    async def open(self, state: str, *, refused: bool = False) -> asyncio.StreamReader:
        sent = self.states[state]
        url = self.proxied.regular if sent[0].startswith(b"CONNECT") else self.proxied.reverse
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        self._open.append(writer)
        async with asyncio.timeout(10):
            for number, piece in enumerate(sent):
                if number % 2:
                    await reader.readuntil(piece)
                else:
                    writer.write(piece)
            if state in ("kept", "half a second head", "a WebSocket"):
                await reader.readuntil(b"\r\n\r\n")
        await until(lambda: refused or self._has(writer.get_extra_info("sockname"), state))
        return reader

    def _has(self, address: tuple[str, int], state: str) -> bool:
        """Whether the proxy has this client, as a busy one if it is to be one."""
        handlers = [one.handler for one in connections_of(self.proxied)._open.values()]
        return any(one.client.peername == address and (state not in IN_USE or is_in_use(one)) for one in handlers)

    def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        if b"upgrade" in head:
            switching = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            writer.write(switching + b"sec-websocket-accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n")
        elif head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@contextlib.asynccontextmanager
async def clients_of(folder: Path, **limits: Any) -> AsyncIterator[Clients]:
    async with (
        serving(upstream) as url,
        serving(silent) as other,
        Proxied(folder, url, early=[Refuses()], **limits) as proxied,
    ):
        clients = Clients(proxied, int(other.rpartition(":")[2]))
        try:
            yield clients
        finally:
            clients.close()


async def test_a_client_of_the_proxy_whose_head_does_not_come_is_closed_and_no_other(tmp_path: Path) -> None:
    async with clients_of(tmp_path, header_timeout="0.4") as clients:
        lasting = [await clients.open(state) for state in (*IN_USE, "kept")]
        for state in clients.states.keys() - {*IN_USE, "kept"}:
            slow = await clients.open(state)
            async with asyncio.timeout(10):
                assert await slow.read() == b"", state
        assert not any(reader.at_eof() for reader in lasting)
        assert len(connections_of(clients.proxied)._open) == len(lasting)


@pytest.mark.parametrize("before", [0, 1], ids=["first", "later"])
async def test_a_head_of_http_2_that_does_not_come_is_not_waited_for_either(before: int, tmp_path: Path) -> None:
    """An HTTP/2 client without a request in flight is kept; one that has begun a head is not."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    trusting.set_alpn_protocols(["h2"])
    asked = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/"), ("a", "b" * 99)]
    async with clients_of(tmp_path, header_timeout="0.4") as clients:
        begun = []
        for all_of_it in (True, False):
            reader = await clients.open("an idle tunnel")
            writer, client = clients._open[-1], H2Connection()
            await writer.start_tls(trusting, server_hostname="localhost")
            client.initiate_connection()
            for number in range(before):
                client.send_headers(2 * number + 1, asked, end_stream=True)
            writer.write(client.data_to_send())
            async with asyncio.timeout(10):
                while before and not any(
                    isinstance(e, StreamEnded) for e in client.receive_data(await reader.read(9999))
                ):
                    pass
            if not all_of_it:
                client.send_headers(2 * before + 1, asked, end_stream=True)
                writer.write(client.data_to_send()[:12])
            begun.append(reader)
        async with asyncio.timeout(10):
            await begun[1].read()
            if not before:
                await begun[0].read()
        assert before == 0 or not begun[0].at_eof()


@pytest.mark.parametrize("state", ["nothing", "half a head", "kept", "an idle tunnel"])
async def test_an_idle_client_of_the_proxy_gives_way_to_a_new_one(state: str, tmp_path: Path) -> None:
    async with clients_of(tmp_path, max_connections="8") as clients:
        busy = [await clients.open(one) for one in (*IN_USE, "unanswered")]
        idle = await clients.open(state)
        younger = await clients.open("kept")
        await clients.open("kept")
        async with asyncio.timeout(10):
            assert await idle.read() == b""
        assert not younger.at_eof()
        assert not any(reader.at_eof() for reader in busy)


async def test_a_new_client_of_the_proxy_is_closed_if_none_is_idle(tmp_path: Path) -> None:
    async with clients_of(tmp_path, max_connections=str(2 * len(IN_USE))) as clients:
        busy = [await clients.open(state) for state in IN_USE * 2]
        new = await clients.open("nothing", refused=True)
        async with asyncio.timeout(10):
            assert await new.read() == b""
        assert not any(reader.at_eof() for reader in busy)
        clients._open[0].close()
        await until(lambda: len(connections_of(clients.proxied)._open) == 2 * len(IN_USE) - 1)
        await clients.open("kept")


def connections_of(proxied: Proxied) -> ProxyConnections:
    assert isinstance(proxied.addon, Toolgraft)
    return next(part for part in proxied.addon.parts if isinstance(part, ProxyConnections))


async def test_there_is_one_warning_if_descriptors_have_run_out(
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
