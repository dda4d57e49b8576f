import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from addon.control.app import ControlApp
from addon.web.server import ControlServer, bind, url_of
from tests.plain_http import NO_TLS

HEADERS = {"Authorization": "Bearer a-token-for-tests"}


@pytest.fixture
async def server(app: ControlApp) -> AsyncIterator[ControlServer]:
    server = ControlServer(app, bind("127.0.0.1", 0))
    await server.start()
    yield server
    async with asyncio.timeout(5):
        await server.stop()


def test_the_socket_is_one_that_asyncio_knows_for_tcp() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_a_port_that_is_taken_is_said_so_with_a_way_out() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"control API: 127\.0\.0\.1:{port} is taken .*--set graft_control=host:port"
        ):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_said_so(host: str) -> None:
    with pytest.raises(OSError, match=rf"control API: {host}:8741 cannot be used .*--set graft_control=host:port"):
        bind(host, 8741)


def test_ipv6_is_served_too() -> None:
    try:
        listener = bind("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_an_address_for_all_is_reached_by_loopback() -> None:
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_it_serves_and_then_gives_the_port_back(app: ControlApp) -> None:
    server = ControlServer(app, bind("127.0.0.1", 0))
    await server.start()
    async with httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, headers=HEADERS) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/calls")).json()["items"] == []
    async with asyncio.timeout(5):
        await server.stop()
        await server.stop()
    host, port = server.url.removeprefix("http://").split(":")
    bind(host, int(port)).close()


class SlowBody:
    """An application that sends the body of `/slow` when it may."""

    def __init__(self) -> None:
        self.body_may_come = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        if scope["path"] == "/slow":
            await self.body_may_come.wait()
        await send({"type": "http.response.body", "body": b"body"})

    def stop(self) -> None:
        self.body_may_come.set()


async def test_a_head_does_not_wait_for_its_body() -> None:
    app = SlowBody()
    server = ControlServer(app, bind("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(10):
        async with httpx2.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
            assert (await client.get("/")).text == "body"
            async with client.stream("GET", "/slow") as answer:
                assert answer.status_code == 200
                app.body_may_come.set()
                assert await answer.aread() == b"body"
            assert (await client.head("/")).headers["content-length"] == "4"
        await server.stop()


async def test_signals_stay_the_programs_own(app: ControlApp) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    server = ControlServer(app, bind("127.0.0.1", 0))
    await server.start()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    await server.stop()


async def test_one_that_was_never_started_gives_the_port_back(app: ControlApp) -> None:
    server = ControlServer(app, bind("127.0.0.1", 0))
    await server.stop()
    host, port = server.url.removeprefix("http://").split(":")
    bind(host, int(port)).close()


async def test_stopping_ends_long_polls_and_event_streams(app: ControlApp) -> None:
    server = ControlServer(app, bind("127.0.0.1", 0))
    await server.start()
    async with httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, headers=HEADERS) as client, asyncio.timeout(5):
        poll = asyncio.ensure_future(client.get("/v1/calls?wait=60"))
        async with client.stream("GET", "/v1/events") as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith(":")
            await client.get("/healthz")
            started = asyncio.get_running_loop().time()
            await server.stop()
            assert [line async for line in lines if line and not line.startswith("id: ")] == []
        assert (await poll).json()["items"] == []
        assert asyncio.get_running_loop().time() - started < 2


async def test_an_idle_connection_does_not_hold_up_the_stop(server: ControlServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(5):
        await reader.readuntil(b"\r\n\r\n")
        await server.stop()
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()


async def test_a_body_that_is_too_large_is_refused_over_the_wire(server: ControlServer) -> None:
    async with httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, headers=HEADERS) as client:
        body = b'"' + b"x" * 300_000 + b'"'
        answer = await client.patch("/v1/sessions/a", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["status"]) == (413, 413)
        assert (await client.get("/v1/sessions/a")).status_code == 200


class _Writes:
    """An application whose one answer has so many bytes, and that notes whether its client has got it. `late`: it
    answers when the client has hung up."""

    def __init__(self, size: int, *, late: bool = False) -> None:
        self.size = size
        self.late = late
        self.is_written = asyncio.Event()
        self.flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while self.late and (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * self.size})
        self.is_written.set()
        self.flushed.set_result(await scope["state"]["flushed"]())

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize(("size", "reads"), [(10, True), (20_000_000, True), (20_000_000, False)])
async def test_an_answer_is_handed_over_when_the_last_byte_was_taken(size: int, reads: bool, connection: str) -> None:
    app = _Writes(size)
    server = ControlServer(cast(ControlApp, app), bind("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*_place(server), limit=30_000_000)
        writer.write(f"GET / HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n\r\n".encode())
        if reads:
            await reader.readuntil(b"0\r\n\r\n")
        else:
            await app.is_written.wait()
            assert not app.flushed.done()
            writer.transport.abort()
        assert await app.flushed is reads
        writer.close()
        await server.stop()


async def test_an_answer_to_a_client_that_has_gone_is_not_handed_over() -> None:
    app = _Writes(10, late=True)
    server = ControlServer(cast(ControlApp, app), bind("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(10):
        _, writer = await asyncio.open_connection(*_place(server))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await writer.drain()
        writer.close()
        assert await app.flushed is False
        await server.stop()


def _place(server: ControlServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)
