"""Event streams: mitmdump with the addon against mitmdump that lets streams through as they come.

Bare mitmdump keeps an answer until it is whole; the one that is compared here has three lines of script more
(`streaming.py`). Events come a millisecond apart, so that each is a read and a write of its own, as a model's are.
"""

import sys

from bench.measure import Effort, Pair, compare, main
from bench.processes import bare, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row, at_most

EVENTS = 200
PATH = f"/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse&events={EVENTS}"


async def table(effort: Effort) -> list[Row]:
    with upstream() as port, bare(port, streams=True) as one, grafted(port) as other:
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        first = await compare(effort, (one, other), TEXT_2K, clients=1, path=f"{PATH}&delay=0.001", streams=True)
        apart = await compare(effort, (one, other), TEXT_2K, clients=2, path=f"{PATH}&delay=0.001", streams=True)
        burst = await compare(effort, (one, other), TEXT_2K, clients=2, path=PATH, streams=True)
    ratio = first.median(lambda r: r.grafted.p50 / r.bare.p50)
    return [
        at_most(f"stream of {EVENTS} events: first byte", 1.1, ratio, "x", first.latencies),
        at_most("the same: CPU for each event", 1.1, 1 / apart.cpu, "x", _events(apart)),
        at_most("the same, events as fast as they come: CPU for each event", None, 1 / burst.cpu, "x", _events(burst)),
    ]


def _events(pair: Pair) -> str:
    """Microseconds of CPU an event, both sides."""
    bare, grafted = pair.cpu_each
    return f"{1e6 * grafted / EVENTS:.0f} : {1e6 * bare / EVENTS:.0f} µs"


if __name__ == "__main__":
    sys.exit(main(__doc__, [("stream", table)]))
