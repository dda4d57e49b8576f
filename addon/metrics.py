"""What the proxy counts, for Prometheus.

Counting happens on the hot path, so it is one addition to a plain dict; Prometheus' own objects are only made when
someone reads the page. Labels are names of this program (surfaces, operations, kinds of error), never what a client
sent: nothing secret, and no more series than there is code for.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Metrics(Collector):
    """Counters since the start of this process, and what the process holds now, in a registry of their own. `misses`
    are turns of the ledger's words that stayed as the client has them, by why."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._loops: Counter[str] = Counter()
        self._rounds = 0
        self._tokens: Counter[str] = Counter()
        self._ledger_hits = 0
        self.misses: Counter[str] = Counter()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def request(self, surface: str, operation: str) -> None:
        """A client's request to a surface came in."""
        self._requests[surface, operation] += 1

    def captured(self, n: int = 1) -> None:
        """Calls of grafted tools were stored."""
        self._calls["captured"] += n

    def answered(self, outcome: str) -> None:
        """A call got its answer; `outcome` is its status (`done`, `failed`, …)."""
        self._calls[outcome] += 1

    def loop(self, outcome: str, rounds: int) -> None:
        """An answer that the proxy made in a loop is over, after so many requests upstream."""
        self._loops[outcome] += 1
        self._rounds += rounds

    def tokens(self, prompt: int, output: int) -> None:
        """What all requests of a loop took, as the service counts it."""
        self._tokens["prompt"] += prompt
        self._tokens["output"] += output

    def ledger_hits(self, n: int = 1) -> None:
        """Visible turns were replaced by their true turns."""
        self._ledger_hits += n

    def ledger_miss(self, reason: str) -> None:
        """A turn whose words the session knows stayed as the client has it."""
        self.misses[reason] += 1

    def error(self, kind: str) -> None:
        """Something went wrong on our side, or the store's."""
        self._errors[kind] += 1

    def render(self) -> bytes:
        """The page, in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        requests = CounterMetricFamily(
            "toolgraft_requests", "Requests to a Gemini surface.", labels=("surface", "operation")
        )
        for (surface, operation), n in self._requests.items():
            requests.add_metric((surface, operation), n)
        yield requests
        yield _by_label("toolgraft_calls", "Calls of grafted tools, by what became of them.", "outcome", self._calls)
        yield _by_label("toolgraft_loops", "Answers made in a loop, by how they ended.", "outcome", self._loops)
        yield CounterMetricFamily("toolgraft_loop_rounds", "Requests that loops sent upstream.", value=self._rounds)
        yield _by_label("toolgraft_loop_tokens", "Tokens of loops of several requests.", "kind", self._tokens)
        yield CounterMetricFamily(
            "toolgraft_ledger_hits", "Visible turns replaced by their true turns.", value=self._ledger_hits
        )
        yield _by_label(
            "toolgraft_ledger_misses",
            "Turns of the ledger's words that stayed as the client has them, by why.",
            "reason",
            self.misses,
        )
        yield _by_label("toolgraft_errors", "Errors, by kind.", "kind", self._errors)
        yield GaugeMetricFamily("toolgraft_tasks", "Tasks of the event loop that renders this page.", value=_tasks())


def _by_label(name: str, documentation: str, label: str, values: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=(label,))
    for value, n in values.items():
        family.add_metric((value,), n)
    return family


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no event loop runs here
        return 0
