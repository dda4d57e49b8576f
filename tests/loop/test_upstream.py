"""Rounds over real connections: requests arrive as they are, and answers are read as they were sent."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from addon.loop import upstream as upstream_module
from addon.loop.upstream import Address, Headers, Upstream
from addon.tools import http_connections
from addon.tools.http_connections import LIMITS, OwnedConnections
from tests.certificates import secure
from tests.loop.conftest import Watcher, until
from tests.loop.servers import CHUNKED, ENDS, OK, STALLS, Script, Server
from tests.plain_http import NO_TLS


@pytest.fixture
async def connections() -> AsyncIterator[OwnedConnections]:
    async with connections_with(NO_TLS) as connections:
        yield connections


def connections_with(context: ssl.SSLContext, *, http2: bool = False) -> OwnedConnections:
    return OwnedConnections(
        lambda: httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=LIMITS, http2=http2)
    )


async def ask(
    connections: OwnedConnections, url: str, key: str = "alice", headers: Headers = (), body: bytes = b"{}"
) -> tuple[int, bytes]:
    upstream = Upstream(lambda _: connections, Watcher())
    sent = [(b"X-Goog-Api-Key", key.encode()), *headers]
    async with asyncio.timeout(20), upstream.send(Address("POST", url, sent), body) as answer:
        return answer.status, await answer.body()


@pytest.mark.parametrize("size", [2, 3 * 1024 * 1024])
async def test_a_request_is_sent_as_it_is(server: Server, connections: OwnedConnections, size: int) -> None:
    odd = [(b"x-Odd", "é".encode()), (b"x-odd", b"\xff"), (b"X-Empty", b"")]
    await ask(connections, server.url, headers=odd, body=b"x" * size)
    ((request,),) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    host = server.url.split("/")[2].encode()
    assert line == b"POST /v1?q=%20 HTTP/1.1"
    assert sorted(lines) == sorted(
        [
            *(b"Host: " + host, b"X-Goog-Api-Key: alice", b"Content-Length: %d" % size),
            *(name + b": " + value for name, value in odd),
        ]
    )
    assert body == b"x" * size


@pytest.mark.parametrize("header", [(b"a b", b"c"), (b"a", b"b\r\nc: d"), (b"a", b"\0"), (b"", b"b"), (b"a:", b"b")])
async def test_a_header_that_would_be_read_as_another_is_not_sent(
    server: Server, connections: OwnedConnections, header: tuple[bytes, bytes]
) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        await ask(connections, server.url, headers=[header])
    assert server.counts in ([], [0])


async def test_cookies_are_not_kept_and_redirects_not_followed(
    server: Server, connections: OwnedConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    moved = b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    server.scripts = [[moved]]
    assert [await ask(connections, server.url) for _ in range(2)] == [(307, b""), (200, b"hi")]
    assert server.counts == [2]
    assert b"cookie" not in server.requests[0][1].lower()


async def test_a_connection_is_kept_for_its_credential(server: Server, connections: OwnedConnections) -> None:
    for key in ("alice", "bob", "alice", "bob", "carol"):
        assert await ask(connections, server.url, key) == (200, b"hi")
    assert server.counts == [2, 2, 1]


@pytest.mark.parametrize("most", [0, 1, 2])
async def test_connections_that_are_idle_for_long_or_too_many_are_closed(
    server: Server, connections: OwnedConnections, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Those in use are not."""
    server.scripts = [[OK[:-1], STALLS]]
    stalled = asyncio.ensure_future(ask(connections, server.url, "stalled"))
    await until(lambda: server.counts == [1])
    for key in "ab":
        await ask(connections, server.url, key)
    monkeypatch.setattr(http_connections, "MAX_IDLE_OWNERS", most or 2)
    if not most:
        monkeypatch.setattr(http_connections, "IDLE", -1.0)
    await ask(connections, server.url, "c")
    await until(lambda: server.gone == 2 - most)
    assert not stalled.done()
    stalled.cancel()
    await until(lambda: server.gone == 3 - most)


ANSWERS: dict[str, tuple[Script, bytes]] = {
    "in pieces": ([OK[:20], OK[20:-1], OK[-1:]], b"hi"),
    "chunks": ([CHUNKED + b"2\r\nhi\r\n", b"1;a=b\r\n!\r\n0\r\n\r\n"], b"hi!"),
    "trailers": ([CHUNKED + b"2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n"], b"hi"),
    "1xx": ([b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n" * 3 + OK], b"hi"),
    "nothing": ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], b""),
}
LAST: dict[str, tuple[Script, bytes]] = {
    "to the end": ([b"HTTP/1.1 200 OK\r\n\r\nhi", b" there", ENDS], b"hi there"),
    "close": ([OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")], b"hi"),
    "HTTP/1.0": ([OK.replace(b"1.1", b"1.0")], b"hi"),
    "surplus": ([OK + b"surplus"], b"hi"),
    "another answer": ([OK * 2], b"hi"),
    "another answer, later": ([OK, OK], b"hi"),
    "ended behind it": ([OK, ENDS], b"hi"),
    "ended in its trailers": ([CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + b"x" * 9, ENDS], b"hi"),
}


@pytest.mark.parametrize("name", [*ANSWERS, *LAST])
async def test_an_answer_is_read_to_its_end_and_no_further(
    server: Server, connections: OwnedConnections, name: str
) -> None:
    script, body = (ANSWERS | LAST)[name]
    server.scripts = [script]
    assert await ask(connections, server.url) == (200, body)
    assert await ask(connections, server.url, "bob") == (200, b"hi")
    if name in ANSWERS:
        assert await ask(connections, server.url) == (200, b"hi")
        assert server.counts == [2, 1]


FAILURES: dict[str, Script] = {
    "no answer": [ENDS],
    "cut in the head": [OK[:12], ENDS],
    "cut in the body": [OK[:-1], ENDS],
    "cut between chunks": [CHUNKED + b"2\r\nhi\r\n", ENDS],
    "bad chunk": [CHUNKED + b"nonsense\r\n"],
    "no HTTP": [b"hello\r\n\r\n"],
    "two lengths": [OK.replace(b"OK\r\n", b"OK\r\ncontent-length: 3\r\n")],
    "another coding": [CHUNKED.replace(b"chunked", b"gzip, chunked") + b"2\r\nhi\r\n0\r\n\r\n"],
    "another protocol": [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + OK],
    "a head without an end": [b"HTTP/1.1 200 OK\r\n", *[b"a: %s\r\n" % (b"b" * 9000)] * 40],
    "trailers without an end": [CHUNKED + b"2\r\nhi\r\n0\r\n", *[b"a: %s\r\n" % (b"b" * 9000)] * 40],
}


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES)
async def test_an_answer_that_cannot_be_read_is_an_error(
    server: Server, connections: OwnedConnections, script: Script
) -> None:
    """The request is not sent again, and the connection is not used again."""
    server.scripts = [script]
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(connections, server.url)
    assert server.counts == [1]
    assert await ask(connections, server.url) == (200, b"hi")
    assert server.counts == [1, 1]


async def test_a_request_on_a_connection_that_was_closing_is_not_sent_twice(
    server: Server, connections: OwnedConnections
) -> None:
    """The server may have processed it."""
    server.scripts = [[OK], [ENDS]]
    assert await ask(connections, server.url) == (200, b"hi")
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(connections, server.url)
    assert server.counts == [2]
    assert await ask(connections, server.url) == (200, b"hi")


async def test_a_connection_that_was_closed_while_idle_is_not_used_again(
    server: Server, connections: OwnedConnections
) -> None:
    server.scripts = [[OK, ENDS]]
    for _ in range(2):
        assert await ask(connections, server.url) == (200, b"hi")
        await until(lambda: server.gone == 1)
    assert server.counts == [1, 1]


async def test_an_answer_that_is_not_read_to_its_end_closes_its_connection(
    server: Server, connections: OwnedConnections
) -> None:
    server.scripts = [[OK[:-1], STALLS], [STALLS]]
    for number in (1, 2):
        asking = asyncio.ensure_future(ask(connections, server.url))
        await until(partial(lambda number: len(server.counts) == number and server.counts[-1] == 1, number))
        asking.cancel()
        await until(partial(lambda number: server.gone == number, number))


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_server_that_does_nothing_is_left(
    server: Server, connections: OwnedConnections, monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    name = "write" if blocks else "read"
    monkeypatch.setitem(upstream_module._TIMEOUT, name, 0.2)
    server.scripts = [[STALLS]]
    never = asyncio.Event()
    if blocks:
        monkeypatch.setattr(asyncio.StreamReader, "readexactly", lambda self, _: never.wait())
    with pytest.raises(httpx2.WriteTimeout if blocks else httpx2.ReadTimeout):
        await ask(connections, server.url, body=b"x" * (64 * 1024 * 1024 if blocks else 1))


async def test_a_port_without_a_server_is_an_error_that_says_so(connections: OwnedConnections) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(httpx2.ConnectError, match="attempts failed"):
            await ask(connections, f"http://127.0.0.1:{sock.getsockname()[1]}/")


@pytest.mark.parametrize("eager", [False, True], ids=["usual tasks", "mitmproxy's tasks"])
async def test_each_address_of_a_server_is_tried(
    server: Server, connections: OwnedConnections, monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    loop = asyncio.get_running_loop()
    port = int(server.url.rpartition(":")[2].partition("/")[0])

    async def found(host: str, port: int, **_: Any) -> list[Any]:
        addresses = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", found)
    if eager:
        loop.set_task_factory(asyncio.eager_task_factory)
    assert await ask(connections, f"http://model.test:{port}/") == (200, b"hi")


async def test_a_server_s_certificate_is_checked(tmp_path: Path) -> None:
    own, trusting = secure(tmp_path)
    server = Server()
    serving = await asyncio.start_server(server, "127.0.0.1", ssl=own)
    url = f"https://127.0.0.1:{serving.sockets[0].getsockname()[1]}/"
    async with connections_with(trusting) as trusting_ones, connections_with(ssl.create_default_context()) as others:
        assert await ask(trusting_ones, url) == (200, b"hi")
        with pytest.raises(httpx2.ConnectError, match="certificate"):
            await ask(others, url)
    serving.close()
    serving.abort_clients()
    await serving.wait_closed()


async def test_a_server_may_choose_http_2(tmp_path: Path) -> None:
    """Each credential still has its own connection."""
    asked: list[dict[bytes, int]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        sizes: dict[bytes, int] = {}
        keys: dict[int, bytes] = {}
        asked.append(sizes)
        peer.initiate_connection()
        writer.write(peer.data_to_send())
        while data := await reader.read(65536):
            for event in peer.receive_data(data):
                if isinstance(event, RequestReceived):
                    keys[event.stream_id] = dict(event.headers)[b"x-goog-api-key"]
                elif isinstance(event, DataReceived):
                    sizes[keys[event.stream_id]] = sizes.get(keys[event.stream_id], 0) + len(event.data)
                    peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    peer.send_headers(event.stream_id, [(":status", "200")])
                    peer.send_data(event.stream_id, keys[event.stream_id], end_stream=True)
            writer.write(peer.data_to_send())
        writer.close()

    own, trusting = secure(tmp_path)
    own.set_alpn_protocols(["h2", "http/1.1"])
    serving = await asyncio.start_server(serve, "127.0.0.1", ssl=own)
    url = f"https://127.0.0.1:{serving.sockets[0].getsockname()[1]}/"
    async with connections_with(trusting, http2=True) as connections:
        for key in ("alice", "bob", "alice"):
            assert await ask(connections, url, key, body=bytes(1_000_000)) == (200, key.encode())
    assert asked == [{b"alice": 2_000_000}, {b"bob": 1_000_000}]
    serving.close()
    serving.abort_clients()
    await serving.wait_closed()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_answer_that_comes_before_the_request_s_end_is_read(tmp_path: Path, scheme: str) -> None:
    """The server takes the rest of the request, as common servers do."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()

    own, trusting = secure(tmp_path)
    serving = await asyncio.start_server(serve, "127.0.0.1", ssl=own if scheme == "https" else None)
    url = f"{scheme}://127.0.0.1:{serving.sockets[0].getsockname()[1]}/"
    async with connections_with(trusting) as connections:
        for _ in range(2):
            assert await ask(connections, url, body=bytes(32 * 1024 * 1024)) == (413, b"")
    serving.close()
    serving.abort_clients()
    await serving.wait_closed()
