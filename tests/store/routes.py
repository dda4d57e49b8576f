"""A connection to a server that a test can cut, or redirect to another server."""

import asyncio
import contextlib
from typing import Self


class Route:
    """`cut_after`, `cut_writes_after`: the number of received, or sent, bytes after which each connection is cut.
    `lose_reply_to`: the next connection that sends this gets no reply, and is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_after: int | None = None
        self.cut_writes_after: int | None = None
        self.lose_reply_to: bytes | None = None
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    def lead_to(self, target: int) -> None:
        self._target = target
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
            pair = {writer, server_writer}
            self._writers |= pair
            loses = asyncio.Event()
            await asyncio.gather(
                self._pass(reader, server_writer, loses, False), self._pass(server_reader, writer, loses, True)
            )
            self._writers -= pair
        writer.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loses: asyncio.Event, is_reply: bool
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_reply and loses.is_set():
                    self.cuts += 1
                    break
                if not is_reply and self.lose_reply_to is not None and self.lose_reply_to in data:
                    self.lose_reply_to = None
                    loses.set()
                limit = self.cut_after if is_reply else self.cut_writes_after
                if limit is not None and passed + len(data) > limit:
                    writer.write(data[: max(limit - passed, 0)])
                    self.cuts += 1
                    break
                passed += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()
