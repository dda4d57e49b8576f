"""Event streams: mitmdump with the addon against mitmdump that passes streams on as they arrive.

Bare mitmdump buffers whole answers, so it gets a script of three lines here (`scripts/streaming.py`). Each event is a
separate read and write, like a model's.
"""

from bench.measure import STREAM, Effort, compare
from bench.processes import bare, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row, at_most

EVENTS = 200


async def table(effort: Effort) -> list[Row]:
    with upstream() as port, bare(port, streams=True) as one, grafted(port) as other:
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        path = f"{STREAM}&events={EVENTS}&delay=0.001"
        pair = await compare(effort, (one, other), TEXT_2K, clients=1, path=path, streams=True)
    first = pair.median(lambda r: r.grafted.p50 / r.bare.p50)
    mine, theirs = (1e6 * seconds / EVENTS for seconds in reversed(pair.cpu_each))
    return [
        at_most(f"stream of {EVENTS} events: first byte", 1.3, first, "x", pair.latencies),
        at_most("the same: CPU for each event", 1.6, 1 / pair.cpu, "x", f"{mine:.0f} : {theirs:.0f} µs"),
    ]
