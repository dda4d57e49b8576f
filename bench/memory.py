"""Memory of the proxy with the addon: after 20,000 requests against after 2,000, and with 100 chats of large results.

Twelve clients talk of 2 KB, four of 100 KB. The answers of two of the twelve hold a call each time, so that the store
(SQLite), the ledger and what is remembered of histories grow as they do in use.
"""

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.conversations import STEPS, Kind, bodies, text_kind, words
from bench.load import Clients, head
from bench.measure import PATH, Effort, main
from bench.processes import Side, bare, grafted, upstream
from bench.proxy import TEXT_2K, TEXT_100K, TOOLSET
from bench.report import Row, at_most
from bench.seed import Captured, capture, default_store

_SMALL, _CALLING, _LARGE = 10, 2, 4
_RESULT = 200_000
_CHAT_CLIENTS = 4
_CHAT_REQUESTS = 4


async def table(effort: Effort) -> list[Row]:
    before = effort.requests // 10
    with upstream() as port:
        with bare(port) as side:
            base, bare_grown = await _grown(side, before, effort.requests)
        with grafted(port) as side:
            side.api("PUT", "/v1/sessions/default/tools", TOOLSET)
            first, grown = await _grown(side, before, effort.requests)
            calls = side.counted("toolgraft_calls")
    return [
        at_most(
            f"memory after {effort.requests:,} requests against after {before:,}",
            5,
            grown / 1e6,
            "MB",
            f"from {first / 1e6:.0f} MB, {calls:,} calls captured; "
            f"bare mitmdump: {bare_grown / 1e6:.1f} MB, from {base / 1e6:.0f} MB",
            digits=1,
        ),
        await _chats(max(_CHAT_CLIENTS, effort.requests // 200)),
    ]


async def _grown(side: Side, before: int, requests: int) -> tuple[int, int]:
    """Bytes after `before` requests, and how many more after `requests`."""
    groups = [
        await _clients(side, PATH, TEXT_2K, range(_SMALL)),
        await _clients(side, f"{PATH}?call=get_weather", TEXT_2K, range(_SMALL, _SMALL + _CALLING)),
        await _clients(side, PATH, TEXT_100K, range(_LARGE)),
    ]
    await _send(groups, before)
    first = side.process.memory
    await _send(groups, requests - before)
    grown = side.process.memory - first
    for group in groups:
        group.close()
    return first, grown


async def _clients(side: Side, path: str, kind: Kind, numbers: range) -> Clients:
    return await Clients.connect(side.port, head(side.port, path), [bodies(kind, n) for n in numbers])


async def _send(groups: list[Clients], requests: int) -> None:
    """So many requests in all; each group as many as it has clients."""
    clients = [len(group) for group in groups]
    await asyncio.gather(
        *(group.run(requests=requests * n // sum(clients)) for group, n in zip(groups, clients, strict=True))
    )


async def _chats(count: int) -> Row:
    """So many chats that hold two results of 200 KB each, beside what the proxy takes before the first of them. It has
    served requests of this size by then."""
    with tempfile.TemporaryDirectory() as folder, upstream() as port:
        store = default_store(Path(folder))
        await store.open()
        calls = await capture(store, "default", 2 * count, answered=False)
        for number, call in enumerate(calls):
            await store.answer("default", call.call_id, result={"text": words(_RESULT, number)})
        await store.close()
        with grafted(port, Path(folder)) as side:
            plain = text_kind("", 2 * _RESULT, 41)
            clients = await _clients(side, PATH, plain, range(_CHAT_CLIENTS))
            await clients.run(requests=10 * _CHAT_CLIENTS)
            clients.close()
            first, before = side.process.memory, side.counted("toolgraft_requests")
            shared = chats_in_turn(calls)
            clients = await Clients.connect(side.port, head(side.port, PATH), [shared] * _CHAT_CLIENTS)
            await clients.run(requests=count * _CHAT_REQUESTS)
            clients.close()
            grown = side.process.memory - first
            hits, requests = side.counted("toolgraft_ledger_hits"), side.counted("toolgraft_requests") - before
            if hits != 2 * requests:
                raise RuntimeError(f"{hits} ledger hits in {requests} requests, which should have two each")
    what = f"memory with {count} chats that hold two results of 200 KB"
    return at_most(what, 16, grown / 1e6, "MB", f"from {first / 1e6:.0f} MB; {requests} requests", digits=1)


def chats_in_turn(calls: list[Captured]) -> Iterator[list[bytes]]:
    """The first request of each chat, then the second of each, and so on."""
    kinds = [text_kind("", 2000, 5, [call.text for call in two]) for two in itertools.batched(calls, 2, strict=True)]
    chats = [bodies(kind, STEPS * number) for number, kind in enumerate(kinds)]
    return (next(chat) for _ in range(_CHAT_REQUESTS) for chat in chats)


if __name__ == "__main__":
    sys.exit(main(__doc__, [("memory", table)]))
