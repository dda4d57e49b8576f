"""The console open in three tabs, and three readers of request events, beside clients: what their streams and the parts
that tabs fetch take.

A tab does what `console.js` does: it follows `/console/changes`, and fetches what a message names.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from bench.calls import TOOLS
from bench.conversations import bodies
from bench.load import Clients, Result, head, length_of
from bench.measure import CLIENTS, PATH, Effort, alternate, main
from bench.processes import Side, grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_most

_EVENTS = 3
"""Readers of request events."""
_TABS = {"live": ("requests", "live"), "calls": ("calls",), "turns": ("turns",)}
"""The pages, and the messages after which each fetches its part."""


async def table(effort: Effort) -> list[Row]:
    # Long rounds: each opens the pages anew, which is not what open pages take.
    effort = Effort(max(2, effort.rounds // 2), 10 * effort.seconds, effort.requests)
    with upstream() as port, grafted(port, None, f"graft_tools={TOOLS}") as side:
        loop = f"{PATH}?loop=noop"
        return [
            await _loss(effort, side, Tabs, "the console in three tabs: loss of throughput, 2 KB", PATH, cold=False),
            await _loss(effort, side, Tabs, "the same, every request a loop with a call", loop, cold=True),
            await _loss(
                effort, side, EventReaders, "three readers of request events: loss, each a loop", loop, cold=True
            ),
        ]


async def _loss(effort: Effort, side: Side, visitors: "type[Visitors]", what: str, path: str, *, cold: bool) -> Row:
    made = [bodies(TEXT_2K, n, cold=cold) for n in range(CLIENTS)]
    clients = await Clients.connect(side.port, head(side.port, path), made)
    beside = visitors(side)
    await clients.run(requests=2 * CLIENTS)

    async def alone() -> Result:
        return await clients.run(seconds=effort.seconds)

    async def together() -> Result:
        async with beside.open():
            return await clients.run(seconds=effort.seconds)

    pair = await alternate(effort, (side, side), (alone, together))
    clients.close()
    detail = f"{pair.rates}; {beside.fetched} {beside.unit}"
    return at_most(what, 3, 100 * (1 - pair.rate), "%", detail, digits=1)


class Visitors:
    """What the control API serves meanwhile. `fetched`: how much it has, in `unit`."""

    unit = ""

    def __init__(self, side: Side) -> None:
        self._port = side.control
        self.fetched = 0

    def visits(self) -> list[Coroutine[Any, Any, None]]:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        visits = [asyncio.ensure_future(visit) for visit in self.visits()]
        try:
            yield
        finally:
            for visit in visits:
                visit.cancel()
            outcomes = await asyncio.gather(*visits, return_exceptions=True)
            if errors := [one for one in outcomes if not isinstance(one, asyncio.CancelledError)]:
                raise RuntimeError(f"a visit ended: {errors[0]!r}")

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield reader, writer
        finally:
            writer.close()

    def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n\r\n".encode())


class Tabs(Visitors):
    unit = "parts fetched"

    def visits(self) -> list[Coroutine[Any, Any, None]]:
        return [self._tab(page, kinds) for page, kinds in _TABS.items()]

    async def _tab(self, page: str, kinds: tuple[str, ...]) -> None:
        async with self._connected() as (events, stream), self._connected() as (reader, writer):
            self._get(stream, "/console/changes?page=live" if page == "live" else "/console/changes")
            while True:
                line = await events.readline()
                if not line:
                    raise RuntimeError("the stream has ended")
                kind = line.decode().strip().removeprefix("event: ")
                parts = [page] * (kind in kinds) + ["waiting"] * (kind == "approvals")
                for part in parts:
                    self._get(writer, f"/console/parts/{part}")
                    answer = await reader.readuntil(b"\r\n\r\n")
                    if not answer.startswith(b"HTTP/1.1 200"):
                        raise RuntimeError(f"{part}: {answer!r}")
                    await reader.readexactly(length_of(answer))
                    self.fetched += 1


class EventReaders(Visitors):
    unit = "events read"

    def visits(self) -> list[Coroutine[Any, Any, None]]:
        return [self._read() for _ in range(_EVENTS)]

    async def _read(self) -> None:
        async with self._connected() as (events, stream):
            self._get(stream, "/v1/events?requests=1&stored=0")
            while line := await events.readline():
                self.fetched += line.startswith(b"event: request")
            raise RuntimeError("the stream has ended")


if __name__ == "__main__":
    sys.exit(main(__doc__, [("console", table)]))
