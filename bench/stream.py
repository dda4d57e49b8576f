"""Event streams: mitmdump with the addon against mitmdump that lets streams through as they come.

Bare mitmdump keeps an answer until it is whole; the one that is compared here has three lines of script more
(`scripts/streaming.py`). Each event is a read and a write of its own, as a model's are.
"""

import dataclasses
import sys

from bench.measure import Effort, Pair, compare, main
from bench.processes import Side, bare, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row, at_most

EVENTS = 200
_AT_ONCE_EVENTS = 60
_EVERY = 0.0003
"""Seconds between two events of all streams together: about half of what bare mitmdump can serve."""


async def table(effort: Effort) -> list[Row]:
    with upstream() as port, bare(port, streams=True) as one, grafted(port) as other:
        sides = (one, other)
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        apart = await compare(effort, sides, TEXT_2K, clients=1, path=_path(EVENTS, 0.001), streams=True)
        burst = await compare(effort, sides, TEXT_2K, clients=2, path=_path(EVENTS), streams=True)
        some, many = await _at_once(effort, sides, 16), await _at_once(effort, sides, 64)
    return [
        _first_byte(f"stream of {EVENTS} events: first byte", 1.0, apart),
        _cpu("the same: CPU for each event", 1.05, apart, EVENTS),
        _cpu("the same, events as fast as they come: CPU for each event", None, burst, EVENTS),
        _first_byte("16 streams at once: first byte", None, some),
        _cpu("16 streams at once: CPU for each event", 1.05, some, _AT_ONCE_EVENTS),
        _first_byte("64 streams at once: first byte", 1.1, many),
        _cpu("64 streams at once: CPU for each event", 1.05, many, _AT_ONCE_EVENTS),
    ]


def _path(events: int, delay: float = 0.0) -> str:
    path = f"/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse&events={events}"
    return f"{path}&delay={delay:.4f}" if delay else path


async def _at_once(effort: Effort, sides: tuple[Side, Side], clients: int) -> Pair:
    """Streams that begin one after the other, and then go on side by side. Fewer rounds, for each is longer."""
    delay = clients * _EVERY
    effort = dataclasses.replace(effort, rounds=max(1, effort.rounds // 2))
    path = _path(_AT_ONCE_EVENTS, delay)
    return await compare(
        effort, sides, TEXT_2K, clients=clients, path=path, streams=True, spread=_AT_ONCE_EVENTS * delay / 4
    )


def _first_byte(what: str, target: float | None, pair: Pair) -> Row:
    return at_most(what, target, pair.median(lambda r: r.grafted.p50 / r.bare.p50), "x", pair.latencies)


def _cpu(what: str, target: float | None, pair: Pair, events: int) -> Row:
    bare, grafted = pair.cpu_each
    return at_most(what, target, 1 / pair.cpu, "x", f"{1e6 * grafted / events:.0f} : {1e6 * bare / events:.0f} µs")


if __name__ == "__main__":
    sys.exit(main(__doc__, [("stream", table)]))
