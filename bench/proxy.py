"""Requests per second and latency: mitmdump with the addon against bare mitmdump, same version, options and mode."""

import tempfile
from pathlib import Path

from bench.conversations import new_image_kind, text_kind
from bench.measure import Effort, compare
from bench.processes import Side, bare, grafted, upstream
from bench.report import Row, at_least, at_most
from bench.seed import capture, default_store
from bench.toolset import TOOL_CONFIG, TOOLS

TEXT_2K = text_kind("2 KB", 2_000, 3)
TEXT_100K = text_kind("100 KB of history", 100_000, 41)
TEXT_1M = text_kind("1 MB of history", 1_000_000, 201)
IMAGE = new_image_kind("a new image of 1 MB in the newest message", 1_000_000)
TOOLSET = {"tools": [{"functionDeclarations": TOOLS}], "tool_config": TOOL_CONFIG}


async def table(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    with upstream() as port, bare(port) as one, grafted(port) as other:
        sides = (one, other)
        pair = await compare(effort, sides, TEXT_2K, path="/v2/other")
        rows.append(at_least("requests a second: not Gemini's, 2 KB", 0.9, pair.rate, pair.rates))
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        for kind, target in ((TEXT_2K, 0.9), (TEXT_100K, 0.8), (TEXT_1M, 0.75), (IMAGE, 0.75)):
            pair = await compare(effort, sides, kind, cold=kind is IMAGE)
            rows.append(at_least(f"requests a second: {kind.name}", target, pair.rate, pair.rates))
        rows.append(await _ledger(effort, port, one))
        pair = await compare(effort, sides, TEXT_2K, clients=1)
        rows.append(at_most("p50 added at one client: 2 KB", None, pair.added, "ms", pair.latencies))
    return rows


async def _ledger(effort: Effort, port: int, one: Side) -> Row:
    """A history of 200 turns, 20 of them placeholders of calls that were captured and answered before."""
    with tempfile.TemporaryDirectory() as folder:
        store = default_store(Path(folder))
        await store.open()
        captured = await capture(store, "default", 20)
        await store.close()
        placeholders = [(one.question, one.text) for one in captured]
        kind = text_kind("100 KB, 200 turns, 20 of them rewritten", 100_000, 200, placeholders)
        with grafted(port, Path(folder)) as other:
            pair = await compare(effort, (one, other), kind)
            other.check_hits(20)
    return at_least(f"requests a second: {kind.name}", None, pair.rate, pair.rates)
