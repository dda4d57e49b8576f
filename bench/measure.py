"""Measures side by side: short rounds in the order A B B A, so that other load on the machine affects both equally."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median

from bench.conversations import Kind, bodies
from bench.load import Clients, Result, head
from bench.processes import Side

CLIENTS = 16
PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"
STREAM = "/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"


@dataclass(frozen=True, slots=True)
class Effort:
    """`rounds` of `seconds` for each side. `requests`: the number that the measurement of memory sends."""

    rounds: int
    seconds: float
    requests: int

    def longer(self, times: float) -> "Effort":
        return Effort(self.rounds, self.seconds * times, self.requests)


FULL = Effort(rounds=8, seconds=0.6, requests=20_000)
QUICK = Effort(rounds=2, seconds=0.25, requests=2_000)
TINY = Effort(rounds=1, seconds=0.02, requests=40)
"""Only shows that the benchmark works."""


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
        """Requests per second, grafted : bare."""
        return self.median(lambda r: r.grafted.rate / r.bare.rate)

    @property
    def added(self) -> float:
        """The median latency that the addon adds, in ms."""
        return 1000 * self.median(lambda r: r.grafted.p50 - r.bare.p50)

    @property
    def cpu_each(self) -> tuple[float, float]:
        """Seconds of the proxy's CPU per request, bare and grafted, over all rounds."""
        bare = sum(r.bare_cpu for r in self.rounds) / sum(len(r.bare.latencies) for r in self.rounds)
        return bare, sum(r.grafted_cpu for r in self.rounds) / sum(len(r.grafted.latencies) for r in self.rounds)

    @property
    def cpu(self) -> float:
        """CPU per request, bare : grafted: equals `rate` if nothing but the CPU is a limit."""
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
    clients: int = CLIENTS,
    path: str = PATH,
    cold: bool = False,
    streams: bool = False,
) -> Pair:
    """Both sides under the same load. `kind`: for both sides, or one for each. `streams`: the answers are event
    streams, and latencies are those of first events."""
    made: list[Clients] = []
    try:
        for side, its in zip(sides, kind if isinstance(kind, tuple) else (kind, kind), strict=True):
            begun = [bodies(its, n, cold=cold) for n in range(clients)]
            made.append(await Clients.connect(side.port, head(side.port, path), begun, streams=streams))
            # The beginning of each client's first conversation, without a delay: proxies close idle connections.
            await made[-1].run(requests=2 * clients)
        a, b = made
        return await alternate(
            effort, sides, (lambda: a.run(seconds=effort.seconds), lambda: b.run(seconds=effort.seconds))
        )
    finally:
        for one in made:
            one.close()
