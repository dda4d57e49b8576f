"""Memory of the proxy with the addon: after 20,000 requests against after 2,000.

Twelve clients talk of 2 KB, four of 100 KB. The answers of two of the twelve hold a call each time, so that the store
(SQLite), the ledger and what is remembered of histories grow as they do in use.
"""

import asyncio
import sys

from bench.conversations import Kind, bodies
from bench.load import Clients, head
from bench.measure import PATH, Effort, main
from bench.processes import Side, grafted, upstream
from bench.proxy import TEXT_2K, TEXT_100K, TOOLSET
from bench.report import Row, at_most

_SMALL, _CALLING, _LARGE = 10, 2, 4


async def table(effort: Effort) -> list[Row]:
    with upstream() as port, grafted(port) as side:
        side.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        groups = [
            await _clients(side, PATH, TEXT_2K, range(_SMALL)),
            await _clients(side, f"{PATH}?call=get_weather", TEXT_2K, range(_SMALL, _SMALL + _CALLING)),
            await _clients(side, PATH, TEXT_100K, range(_LARGE)),
        ]
        before = effort.requests // 10
        await _send(groups, before)
        first = side.process.memory
        await _send(groups, effort.requests - before)
        last = side.process.memory
        calls, sent = side.counted("toolgraft_calls"), side.counted("toolgraft_requests")
        for group in groups:
            group.close()
    return [
        at_most(
            f"memory after {effort.requests:,} requests against after {before:,}",
            10,
            (last - first) / 1e6,
            "MB",
            f"{first / 1e6:.0f} → {last / 1e6:.0f} MB; {sent:,} requests, {calls:,} calls captured",
            digits=1,
        )
    ]


async def _clients(side: Side, path: str, kind: Kind, numbers: range) -> Clients:
    return await Clients.connect(side.port, head(side.port, path), [bodies(kind, n) for n in numbers])


async def _send(groups: list[Clients], requests: int) -> None:
    """So many requests in all; each group as many as it has clients."""
    clients = [len(group) for group in groups]
    await asyncio.gather(
        *(group.run(requests=requests * n // sum(clients)) for group, n in zip(groups, clients, strict=True))
    )


if __name__ == "__main__":
    sys.exit(main(__doc__, [("memory", table)]))
