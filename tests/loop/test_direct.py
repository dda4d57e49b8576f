"""Requests that go straight to their server: connections are kept for their owner alone, and answers read as sent."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy.certs import CertStore

from addon.loop import direct as direct_module
from addon.loop import http1
from addon.loop.direct import Direct, Reply
from tests.loop.conftest import until
from tests.plain_http import NO_TLS

ENDS, STALLS = b"", None
Script = list[bytes | None]
"""What is sent for one request. STALLS: nothing more; ENDS: the connection is closed."""
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Plays a script for each request. `requests`: heads and bodies, by connection; `gone`: connections that ended."""

    url = ""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.requests: list[list[bytes]] = []
        self.gone = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.requests.append(requests)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
                requests.append(head + await reader.readexactly(length))
                for piece in self.scripts.pop(0) if self.scripts else [OK]:
                    if piece is STALLS:
                        await reader.read()
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.gone += 1
            writer.close()

    @property
    def counts(self) -> list[int]:
        """The number of requests on each connection."""
        return [len(one) for one in self.requests]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    serving = await asyncio.start_server(one, "127.0.0.1")
    one.url = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}/v1?q=%20"
    yield one
    serving.close()
    serving.abort_clients()
    await serving.wait_closed()


@pytest.fixture
async def direct() -> AsyncIterator[Direct]:
    one = Direct(NO_TLS, http2=True)
    yield one
    await one.aclose()
    assert not one._idle


async def begun(direct: Direct, url: str, owner: str = "alice", headers: http1.Headers = ()) -> Reply:
    reply = await direct.send("POST", url, headers, b"{}", owner)
    assert reply is not None
    return reply


async def ask(direct: Direct, url: str, owner: str = "alice", headers: http1.Headers = ()) -> tuple[int, bytes]:
    reply = await begun(direct, url, owner, headers)
    try:
        return reply.status, b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.aclose()


async def test_a_request_is_sent_as_it_is(server: Server, direct: Direct) -> None:
    await ask(direct, server.url, headers=[(b"X-Goog-Api-Key", b"k"), (b"x-Odd", "é".encode())])
    host = server.url.split("/")[2]
    assert server.requests == [
        [
            f"POST /v1?q=%20 HTTP/1.1\r\nHost: {host}\r\nX-Goog-Api-Key: k\r\nx-Odd: é\r\n".encode()
            + b"Content-Length: 2\r\n\r\n{}"
        ]
    ]


@pytest.mark.parametrize("header", [(b"a b", b"c"), (b"a", b"b\r\nc: d"), (b"a", b"\0"), (b"", b"b"), (b"a:", b"b")])
async def test_a_header_that_would_be_read_as_another_is_not_sent(
    server: Server, direct: Direct, header: tuple[bytes, bytes]
) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        await ask(direct, server.url, headers=[header])
    assert not server.requests


async def test_a_connection_is_kept_for_its_owner(server: Server, direct: Direct) -> None:
    for owner in ("alice", "bob", "alice", "bob", "carol"):
        assert await ask(direct, server.url, owner) == (200, b"hi")
    assert server.counts == [2, 2, 1]


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
async def test_an_answer_is_read_to_its_end_and_no_further(server: Server, direct: Direct, name: str) -> None:
    script, body = (ANSWERS | LAST)[name]
    server.scripts = [script]
    assert await ask(direct, server.url) == (200, body)
    assert await ask(direct, server.url) == (200, b"hi")
    assert server.counts == ([2] if name in ANSWERS else [1, 1])


async def test_no_content_has_no_body(server: Server, direct: Direct) -> None:
    server.scripts = [[b"HTTP/1.1 204 No Content\r\nX-Odd:  as it is \r\n\r\n"]]
    reply = await begun(direct, server.url)
    assert (reply.status, list(reply.headers)) == (204, [(b"X-Odd", b"as it is")])
    assert [chunk async for chunk in reply.chunks()] == []
    await reply.aclose()
    await ask(direct, server.url)
    assert server.counts == [2]


FAILURES: dict[str, Script] = {
    "no answer": [ENDS],
    "cut in the head": [OK[:12], ENDS],
    "cut in the body": [OK[:-1], ENDS],
    "cut between chunks": [CHUNKED + b"2\r\nhi\r\n", ENDS],
    "bad chunk": [CHUNKED + b"nonsense\r\n"],
    "no HTTP": [b"hello\r\n\r\n"],
    "two lengths": [OK.replace(b"OK\r\n", b"OK\r\ncontent-length: 3\r\n")],
    "length and chunks": [CHUNKED.replace(b"OK\r\n", b"OK\r\ncontent-length: 2\r\n") + b"2\r\nhi\r\n0\r\n\r\n"],
    "another coding": [CHUNKED.replace(b"chunked", b"gzip, chunked") + b"2\r\nhi\r\n0\r\n\r\n"],
    "another protocol": [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"],
    "another protocol, unnamed": [b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK],
    "a head without an end": [b"HTTP/1.1 200 OK\r\n", *[b"a: %s\r\n" % (b"b" * 9000)] * 40],
    "1xx without an end": [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000] * 30,
    "trailers without an end": [CHUNKED + b"2\r\nhi\r\n0\r\n", *[b"a: %s\r\n" % (b"b" * 9000)] * 40],
}


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES)
async def test_an_answer_that_cannot_be_read_is_an_error(server: Server, direct: Direct, script: Script) -> None:
    """It is not asked for again: the connection is new."""
    server.scripts = [script]
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(direct, server.url)
    assert server.counts == [1]
    assert await ask(direct, server.url) == (200, b"hi")
    assert server.counts == [1, 1]


async def test_a_kept_connection_that_the_server_closes_is_no_failure(server: Server, direct: Direct) -> None:
    server.scripts = [[OK], [ENDS], [OK]]
    for _ in range(2):
        assert await ask(direct, server.url) == (200, b"hi")
    assert server.counts == [2, 1]
    server.scripts = [[OK[:5], ENDS]]
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(direct, server.url)
    assert server.counts == [2, 2], "its answer had begun"


async def test_what_is_not_read_to_its_end_is_closed(server: Server, direct: Direct) -> None:
    server.scripts = [[OK[:-1], STALLS], [STALLS]]
    await (await begun(direct, server.url)).aclose()
    await until(lambda: server.gone == 1)
    asking = asyncio.ensure_future(ask(direct, server.url))
    await until(lambda: server.counts == [1, 1])
    asking.cancel()
    await until(lambda: server.gone == 2)
    assert direct._places._value == direct_module.MAX_REQUESTS


async def test_a_body_is_read_no_faster_than_it_is_taken(server: Server, direct: Direct) -> None:
    size = 32 * 1024 * 1024
    server.scripts = [[OK.replace(b" 2\r", b" %d\r" % size)[:-2], *[b"x" * 65536] * (size // 65536)]]
    reply = await begun(direct, server.url)
    connection = reply._connection
    assert connection is not None
    await until(lambda: connection._is_paused)
    assert connection._size < 2 * http1._MAX_BUFFER
    assert sum([len(chunk) async for chunk in reply.chunks()]) == size
    await reply.aclose()


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_server_that_does_nothing_is_left(
    server: Server, direct: Direct, monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    monkeypatch.setattr(http1, "WRITE" if blocks else "READ", 0.01)
    server.scripts = [[STALLS]]
    body = b"x" * (64 * 1024 * 1024 if blocks else 1)
    never = asyncio.Event()  # it refers to the server's connection, to which nothing else does while nothing is read
    if blocks:
        monkeypatch.setattr(asyncio.StreamReader, "readexactly", lambda self, _: never.wait())
    with pytest.raises(httpx2.WriteTimeout if blocks else httpx2.ReadTimeout):
        await direct.send("POST", server.url, [], body, "alice")


async def test_idle_connections_are_closed_after_a_while_and_if_there_are_many(
    server: Server, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_module, "MAX_IDLE", 2)
    for owner in "abc":
        await ask(direct, server.url, owner)
    assert [owner for (_, owner), _ in direct._idle.values()] == ["b", "c"]
    monkeypatch.setattr(direct_module, "IDLE", 0.0)
    for owner in "cb":
        await ask(direct, server.url, owner)
    await until(lambda: not direct._idle)


async def test_requests_beyond_the_limit_wait(server: Server, monkeypatch: pytest.MonkeyPatch, direct: Direct) -> None:
    direct._places = asyncio.Semaphore(1)
    server.scripts = [[OK[:-1], STALLS]]
    first = await begun(direct, server.url)
    second = asyncio.ensure_future(ask(direct, server.url))
    await until(lambda: bool(direct._places._waiters))
    monkeypatch.setattr(direct_module, "WAIT", 0.0)
    with pytest.raises(httpx2.PoolTimeout):
        await ask(direct, server.url)
    await first.aclose()
    assert await second == (200, b"hi")


async def test_nobody_there_is_an_error_that_says_so(direct: Direct) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(httpx2.ConnectError, match="Connect call failed"):
            await ask(direct, f"http://127.0.0.1:{sock.getsockname()[1]}/")


async def test_each_address_of_a_server_is_tried(
    server: Server, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    port = int(server.url.rpartition(":")[2].partition("/")[0])

    async def found(host: str, port: int, **_: Any) -> list[Any]:
        addresses = [(socket.AF_INET6, "::1"), (socket.AF_INET6, "::2"), (socket.AF_INET, "127.0.0.1")]
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in addresses]

    monkeypatch.setattr(direct_module, "_NEXT_ADDRESS", 0.05)
    monkeypatch.setattr(loop, "getaddrinfo", found)
    assert await ask(direct, f"http://model.test:{port}/") == (200, b"hi")


@pytest.mark.parametrize("protocols", [["h2", "http/1.1"], ["http/1.1"], []], ids=["HTTP/2", "HTTP/1.1", "no word"])
async def test_a_server_that_chooses_http2_gets_nothing_here(tmp_path: Path, protocols: list[str]) -> None:
    own, trusting = secure(tmp_path)
    if protocols:
        own.set_alpn_protocols(protocols)
    server = Server()
    serving = await asyncio.start_server(server, "127.0.0.1", ssl=own)
    url = f"https://127.0.0.1:{serving.sockets[0].getsockname()[1]}/"
    direct = Direct(trusting, http2=True)
    for _ in range(2):
        reply = await direct.send("POST", url, [], b"{}", "alice")
        assert (reply is None) is ("h2" in protocols)
        if reply is not None:
            assert b"".join([chunk async for chunk in reply.chunks()]) == b"hi"
            await reply.aclose()
    assert len(server.requests) <= 1
    assert sum(server.counts) == (0 if "h2" in protocols else 2)
    distrusting = Direct(ssl.create_default_context(), http2=False)
    with pytest.raises(httpx2.ConnectError, match="certificate"):
        await ask(distrusting, url)
    await direct.aclose()
    serving.close()
    serving.abort_clients()
    await serving.wait_closed()


def secure(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's own context, and one for clients that trust any server."""
    CertStore.create_store(folder, "test", 2048)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(folder / "test-ca.pem")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return own, trusting


LARGE = b"x" * (32 * 1024 * 1024)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("answer", [b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n", b""], ids=["early", "never"])
async def test_a_server_that_does_not_take_the_body(
    tmp_path: Path, scheme: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its early answer is read, and the connection not kept: the rest of the body still belongs on it."""
    writers: list[asyncio.StreamWriter] = []  # nothing else refers to a connection of which nothing is read

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    own, trusting = secure(tmp_path)
    serving = await asyncio.start_server(serve, "127.0.0.1", ssl=own if scheme == "https" else None)
    url = f"{scheme}://127.0.0.1:{serving.sockets[0].getsockname()[1]}/"
    direct = Direct(trusting, http2=False)
    if answer:
        for _ in range(2):
            async with asyncio.timeout(20):
                reply = await direct.send("POST", url, [], LARGE, "alice")
            assert reply is not None
            assert reply.status == 413
            await reply.aclose()
            assert not direct._idle
        assert len(writers) == 2
    else:
        monkeypatch.setattr(http1, "WRITE", 0.2)
        with pytest.raises(httpx2.WriteTimeout):
            await direct.send("POST", url, [], LARGE, "alice")
    await direct.aclose()
    serving.close()
    serving.abort_clients()
    await serving.wait_closed()
