"""Memory of the proxy with the addon: after 20,000 requests against after 2,000.

Twelve clients have histories of 2 KB, four of 100 KB. Two of the twelve get a call in each answer, so that the store
(SQLite), the ledger and cached histories grow as in use.
"""

import asyncio

from bench.conversations import Kind, bodies
from bench.load import Clients, head
from bench.measure import PATH, Effort
from bench.processes import Side, bare, grafted, upstream
from bench.proxy import TEXT_2K, TEXT_100K, TOOLSET
from bench.report import Row, at_most

_SMALL, _CALLING, _LARGE = 10, 2, 4


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
            10,
            grown / 1e6,
            "MB",
            f"from {first / 1e6:.0f} MB, {calls:,} calls captured; "
            f"bare mitmdump: {bare_grown / 1e6:.1f} MB, from {base / 1e6:.0f} MB",
            digits=1,
        )
    ]


async def _grown(side: Side, before: int, requests: int) -> tuple[int, int]:
    """Bytes after `before` requests, and the growth until `requests`."""
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
    """Send `requests` requests, in shares by the groups' numbers of clients."""
    clients = [len(group) for group in groups]
    await asyncio.gather(
        *(group.run(requests=requests * n // sum(clients)) for group, n in zip(groups, clients, strict=True))
    )
