"""The control API beside the proxy, in the same event loop: what 500 requests a second take from it.

Of four requests two list the calls that wait for a result, one shows a call, one sends a result, which is new.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.conversations import bodies
from bench.load import Clients, Result, head, length_of
from bench.measure import CLIENTS, PATH, Effort, alternate, main
from bench.processes import Side, grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_most
from bench.seed import RESULT, Captured, capture, default_store

RATE = 500
_CONNECTIONS = 4


async def table(effort: Effort) -> list[Row]:
    effort = effort.longer(1.5)
    return [
        await _loss(effort, "500 control API requests a second beside it: loss of throughput", 5),
        await _loss(effort, "the same, nothing waits for the disk", None, "graft_durability=process"),
    ]


async def _loss(effort: Effort, what: str, reach: float | None, *options: str) -> Row:
    answers = int(effort.rounds * effort.seconds * RATE / 4 * 1.5) + 100
    with upstream() as port, tempfile.TemporaryDirectory() as folder:
        store = default_store(Path(folder))
        await store.open()
        await capture(store, "default", 5, answered=False)
        calls = await capture(store, "other", answers, answered=False)
        await store.close()
        with grafted(port, Path(folder), *options) as side:
            clients = await Clients.connect(
                side.port, head(side.port, PATH), [bodies(TEXT_2K, n) for n in range(CLIENTS)]
            )
            beside = Beside(side, calls)
            await clients.run(requests=2 * CLIENTS)

            async def alone() -> Result:
                return await clients.run(seconds=effort.seconds)

            async def together() -> Result:
                async with beside.running():
                    return await clients.run(seconds=effort.seconds)

            pair = await alternate(effort, (side, side), (alone, together))
            clients.close()
            beside.close()
    detail = (
        f"{pair.median(lambda r: r.grafted.rate):,.0f} : {pair.median(lambda r: r.bare.rate):,.0f} a second, "
        f"beside {beside.sent / beside.seconds:.0f}"
    )
    return at_most(what, reach, 100 * (1 - pair.rate), "%", detail, digits=1)


class Beside:
    """Sends requests to the control API at a fixed rate, on a few kept connections."""

    def __init__(self, side: Side, calls: list[Captured]) -> None:
        self._port = side.control
        self._requests = self._cycle(iter(calls))
        self._connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._stopping = False
        self.sent = 0
        self.seconds = 0.0

    def _cycle(self, calls: Iterator[Captured]) -> Iterator[bytes]:
        listing = self._request("GET", "/v1/calls?session=default&status=pending&limit=20")
        result = json.dumps({"result": RESULT}).encode()
        for call in calls:
            yield listing
            yield self._request("GET", f"/v1/calls/{call.call_id}")
            yield listing
            yield self._request("POST", f"/v1/calls/{call.call_id}/result", result)
        yield from itertools.repeat(listing)

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{self._port}"]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        while len(self._connections) < _CONNECTIONS:
            self._connections.append(await asyncio.open_connection("127.0.0.1", self._port))
        begun = time.perf_counter()
        self._stopping = False
        workers = [asyncio.ensure_future(self._work(begun, n)) for n in range(_CONNECTIONS)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*workers)
            self.seconds += time.perf_counter() - begun

    async def _work(self, begun: float, turn: int) -> None:
        """Every `_CONNECTIONS`-th request, each at its time."""
        reader, writer = self._connections[turn]
        for number in itertools.count(turn, _CONNECTIONS):
            await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
            if self._stopping:
                return
            writer.write(next(self._requests))
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the control API answered {answer!r}")
            await reader.readexactly(length_of(answer))
            self.sent += 1

    def close(self) -> None:
        for _, writer in self._connections:
            writer.close()


if __name__ == "__main__":
    sys.exit(main(__doc__, [("control", table)]))
