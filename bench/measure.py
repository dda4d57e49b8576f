"""Side by side: short rounds in turn, A B B A, so that what the machine does meanwhile falls on both alike."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.conversations import Kind, bodies
from bench.load import Clients, Result, head
from bench.processes import Side
from bench.report import Row, markdown, plain

CLIENTS = 16
PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"


@dataclass(frozen=True, slots=True)
class Effort:
    """`rounds` of `seconds` each a side. `requests`: how many the memory's measurement sends."""

    rounds: int
    seconds: float
    requests: int

    def longer(self, times: float) -> "Effort":
        return Effort(self.rounds, self.seconds * times, self.requests)


FULL = Effort(rounds=8, seconds=0.6, requests=20_000)
QUICK = Effort(rounds=2, seconds=0.25, requests=2_000)
TINY = Effort(rounds=1, seconds=0.02, requests=40)
"""Tells that it works, and nothing else."""


@dataclass(slots=True)
class Round:
    """One round of both sides; CPU in seconds."""

    bare: Result
    grafted: Result
    bare_cpu: float
    grafted_cpu: float


@dataclass(slots=True)
class Pair:
    """The same rounds of both sides."""

    rounds: list[Round]

    def median(self, of: Callable[[Round], float]) -> float:
        return median(of(one) for one in self.rounds)

    @property
    def rate(self) -> float:
        """Requests a second, grafted : bare."""
        return self.median(lambda r: r.grafted.rate / r.bare.rate)

    @property
    def added(self) -> float:
        """What the addon adds to the median latency, in ms."""
        return 1000 * self.median(lambda r: r.grafted.p50 - r.bare.p50)

    @property
    def cpu_each(self) -> tuple[float, float]:
        """Seconds of the proxy's CPU for each request, bare and grafted, over all rounds."""
        bare = sum(r.bare_cpu for r in self.rounds) / sum(len(r.bare.latencies) for r in self.rounds)
        return bare, sum(r.grafted_cpu for r in self.rounds) / sum(len(r.grafted.latencies) for r in self.rounds)

    @property
    def cpu(self) -> float:
        """CPU for each request, bare : grafted: what `rate` is where nothing else is in the way."""
        bare, grafted = self.cpu_each
        return bare / grafted if bare and grafted else 1.0

    @property
    def rates(self) -> str:
        bare, grafted = self.median(lambda r: r.bare.rate), self.median(lambda r: r.grafted.rate)
        return f"{grafted:,.0f} : {bare:,.0f} a second; by CPU {self.cpu:.2f}"

    @property
    def latencies(self) -> str:
        bare, grafted = self.median(lambda r: r.bare.p50), self.median(lambda r: r.grafted.p50)
        return f"p50 {1000 * grafted:.2f} : {1000 * bare:.2f} ms"


type Runner = Callable[[], Awaitable[Result]]


async def alternate(effort: Effort, sides: tuple[Side, Side], run: tuple[Runner, Runner]) -> Pair:
    """Rounds of the first (bare) and the second (grafted)."""
    rounds = []
    for number in range(effort.rounds):
        results: list[tuple[Result, float]] = [(Result(0.0), 0.0)] * 2
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            before = sides[which].process.cpu
            result = await run[which]()
            results[which] = result, sides[which].process.cpu - before
        (bare, bare_cpu), (grafted, grafted_cpu) = results
        rounds.append(Round(bare, grafted, bare_cpu, grafted_cpu))
    return Pair(rounds)


async def compare(
    effort: Effort,
    sides: tuple[Side, Side],
    kind: Kind | tuple[Kind, Kind],
    *,
    clients: int | tuple[int, int] = CLIENTS,
    path: str = PATH,
    cold: bool = False,
    streams: bool = False,
    spread: float = 0.0,
    tunnel: str = "",
) -> Pair:
    """Both sides under the same load. `kind`, `clients`: of each side, or of the one and the other. `streams`: the
    answers are event streams, and latencies those of first events. `spread`: seconds over which the clients of a round
    begin. `tunnel`: the upstream's host and port, reached by CONNECT and TLS."""
    made: list[Clients] = []
    try:
        counts = (clients, clients) if isinstance(clients, int) else clients
        kinds = (kind, kind) if isinstance(kind, Kind) else kind
        for side, count, each in zip(sides, counts, kinds, strict=True):
            begun = [bodies(each, n, cold=cold) for n in range(count)]
            request = head(side.port, path, host=tunnel)
            made.append(await Clients.connect(side.port, request, begun, streams=streams, tunnel=tunnel))
            # the beginning of each client's first conversation; at once, since no proxy waits long for a request
            await made[-1].run(requests=2 * count)
        a, b = made
        return await alternate(
            effort,
            sides,
            (
                lambda: a.run(seconds=effort.seconds, spread=spread),
                lambda: b.run(seconds=effort.seconds, spread=spread),
            ),
        )
    finally:
        for one in made:
            one.close()


type Table = Callable[[Effort], Awaitable[list[Row]]]


def main(
    description: str | None,
    tables: Sequence[tuple[str, Table]],
    argv: Sequence[str] | None = None,
    *,
    longer: Sequence[tuple[str, Table]] = (),
) -> int:
    """The command line of each of the tables. Exit status 1 where a target was missed. `longer`: tables that take long
    preparation, and are measured only with `--all`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    efforts = parser.add_mutually_exclusive_group()
    efforts.add_argument("--quick", action="store_const", const=QUICK, dest="effort", help="a first look")
    efforts.add_argument("--tiny", action="store_const", const=TINY, dest="effort", help="only whether it runs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    if longer:
        names = " and ".join(name for name, _ in longer)
        parser.add_argument("--all", action="store_true", help=f"with the tables that take long preparation: {names}")
    given = parser.parse_args(argv)
    rows = asyncio.run(_all(given.effort or FULL, [*tables, *longer] if longer and given.all else tables))
    print(markdown(rows) if given.markdown else plain(rows))
    return 1 if any(row.ok is False for row in rows) else 0


async def _all(effort: Effort, tables: Sequence[tuple[str, Table]]) -> list[Row]:
    rows: list[Row] = []
    for name, table in tables:
        for row in await table(effort):
            print(f"{name}: {row.what}: {row.measured}", file=sys.stderr, flush=True)
            rows.append(row)
    return rows
