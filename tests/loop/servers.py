"""A server on a real socket that sends the bytes of a test."""

import asyncio
from collections.abc import AsyncIterator

import pytest

ENDS, STALLS = b"", None
Script = list[bytes | asyncio.Event | None]
"""What is sent for one request. An event is waited for. STALLS: nothing more; ENDS: the connection is closed."""
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Plays a script for each request, and keeps the connection open. `requests`: heads and bodies, by connection;
    `gone`: connections that ended."""

    url = ""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []  # nothing else refers to a connection of which nothing is read
        self.scripts: list[Script] = []
        self.requests: list[list[bytes]] = []
        self.gone = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.requests.append(requests)
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
                requests.append(head + await reader.readexactly(length))
                for piece in self.scripts.pop(0) if self.scripts else [OK]:
                    if isinstance(piece, asyncio.Event):
                        await piece.wait()
                        continue
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
