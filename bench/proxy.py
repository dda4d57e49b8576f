"""Requests a second and latency: mitmdump with the addon against bare mitmdump, same version, options and mode."""

import sys
import tempfile
from pathlib import Path

from bench.conversations import image_kind, text_kind
from bench.measure import PATH, Effort, compare, main
from bench.processes import Side, bare, grafted, upstream
from bench.report import Row, at_least, at_most
from bench.seed import capture, default_store
from bench.toolset import TOOL_CONFIG, TOOLS

TEXT_2K = text_kind("2 KB", 2_000, 3)
TEXT_100K = text_kind("100 KB of history", 100_000, 41)
TEXT_1M = text_kind("long text history of 1 MB", 1_000_000, 201)
IMAGE_1M = image_kind("inline image of 1 MB", 1_000_000)
IMAGE_8M = image_kind("inline image of 8 MB", 8_000_000)
TOOLSET = {"tools": [{"functionDeclarations": TOOLS}], "tool_config": TOOL_CONFIG}


async def table(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    with upstream() as port, bare(port) as one, grafted(port) as other:
        sides = (one, other)
        rows += await _untouched(effort, sides)
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        for kind, target in ((TEXT_2K, 1.4), (TEXT_100K, 1.3), (IMAGE_1M, 0.9), (IMAGE_8M, 1.2), (TEXT_1M, 1.0)):
            pair = await compare(effort, sides, kind)
            rows.append(at_least(f"requests a second: {kind.name}", target, pair.rate, pair.rates))
        pair = await compare(effort, sides, TEXT_2K, path=f"{PATH}?same")
        rows.append(at_least(f"requests a second, every answer alike: {TEXT_2K.name}", None, pair.rate, pair.rates))
        rows += await _ledger(effort, port, one)
        for kind in (TEXT_100K, TEXT_1M):
            pair = await compare(effort, sides, kind, cold=True)
            rows.append(at_least(f"the same, every request new: {kind.name}", 0.8, pair.rate, pair.rates))
        for kind, limit in ((TEXT_2K, 0), (TEXT_100K, 0), (TEXT_1M, 0.2)):
            pair = await compare(effort, sides, kind, clients=1)
            rows.append(at_most(f"p50 added at one client: {kind.name}", limit, pair.added, "ms", pair.latencies))
    return rows


async def _untouched(effort: Effort, sides: tuple[Side, Side]) -> list[Row]:
    """Before any toolset is there."""
    other = await compare(effort, sides, TEXT_2K, path="/v2/other")
    without = await compare(effort, sides, TEXT_2K)
    return [
        at_least("requests a second: not Gemini's, 2 KB", 1.7, other.rate, other.rates),
        at_least("requests a second: session without a toolset, 2 KB", 1.7, without.rate, without.rates),
    ]


async def _ledger(effort: Effort, port: int, one: Side) -> list[Row]:
    """A history of 200 turns, 20 of which stand for calls that were captured and answered before."""
    with tempfile.TemporaryDirectory() as folder:
        store = default_store(Path(folder))
        await store.open()
        captured = await capture(store, "default", 20, answered=True)
        await store.close()
        kind = text_kind("100 KB, 200 turns, 20 ledger hits", 100_000, 200, [one.text for one in captured])
        with grafted(port, Path(folder)) as other:
            pair = await compare(effort, (one, other), kind)
            cold = await compare(effort, (one, other), kind, cold=True)
            hits, requests = other.counted("toolgraft_ledger_hits"), other.counted("toolgraft_requests")
            if hits != 20 * requests:
                raise RuntimeError(f"{hits} ledger hits in {requests} requests, which should have 20 each")
    return [
        at_least(f"requests a second: {kind.name}", 1.2, pair.rate, pair.rates),
        at_least(f"the same, every request new: {kind.name}", 0.8, cold.rate, cold.rates),
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__, [("proxy", table)]))
