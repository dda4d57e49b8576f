"""What the proxy counts, for Prometheus.

Counting happens on the hot path, so it is one addition to a plain dict; Prometheus' own objects are only made when
someone reads the page. Labels are names of this program (surfaces, operations, kinds of error), never what a client
sent: nothing secret, and no more series than there is code for.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Metrics(Collector):
    """Counters since the start of this process, in a registry of their own."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._ledger_hits = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def request(self, surface: str, operation: str) -> None:
        """A client's request to a surface came in."""
        self._requests[surface, operation] += 1

    def captured(self, n: int = 1) -> None:
        """Calls of grafted tools were stored."""
        self._calls["captured"] += n

    def answered(self, outcome: str) -> None:
        """A call got its answer; `outcome` is its status (`done`, `failed`, …)."""
        self._calls[outcome] += 1

    def ledger_hits(self, n: int = 1) -> None:
        """Visible turns were replaced by their true turns."""
        self._ledger_hits += n

    def error(self, kind: str) -> None:
        """Something went wrong on our side, or the store's."""
        self._errors[kind] += 1

    def render(self) -> bytes:
        """The page, in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[CounterMetricFamily]:
        requests = CounterMetricFamily(
            "toolgraft_requests", "Requests to a Gemini surface.", labels=("surface", "operation")
        )
        for (surface, operation), n in self._requests.items():
            requests.add_metric((surface, operation), n)
        yield requests
        yield _by_label("toolgraft_calls", "Calls of grafted tools, by what became of them.", "outcome", self._calls)
        yield CounterMetricFamily(
            "toolgraft_ledger_hits", "Visible turns replaced by their true turns.", value=self._ledger_hits
        )
        yield _by_label("toolgraft_errors", "Errors, by kind.", "kind", self._errors)


def _by_label(name: str, documentation: str, label: str, values: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=(label,))
    for value, n in values.items():
        family.add_metric((value,), n)
    return family
