"""The proxy's counters, for Prometheus.

Counting is on the hot path, so it is one addition to a dict; Prometheus' objects are made only for a scrape. Labels are
names from this program (surfaces, operations, kinds of error), never data from clients, so they hold no secrets and the
number of series is bounded.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from store.base import BOUNDS, BreakerState, Traffic

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Metrics(Collector):
    """Counters since the start of the process, and current sizes, in a separate registry. `misses`: turns that were not
    replaced although the ledger has their words, by reason. `cache_sizes`: bytes cached, by kind. `store`: the traffic
    with the store's server, if it has one."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._loops: Counter[str] = Counter()
        self._rounds = 0
        self._tokens: Counter[str] = Counter()
        self._ledger_hits = 0
        self.misses: Counter[str] = Counter()
        self.cache_sizes: Callable[[], Mapping[str, int]] = dict
        self.store: Traffic | None = None

    def count_request(self, surface: str, operation: str) -> None:
        self._requests[surface, operation] += 1

    def count_captured(self, n: int = 1) -> None:
        self._calls["captured"] += n

    def count_ended(self, outcome: str) -> None:
        """Count a call that has ended; `outcome` is its status (`done`, `failed`, …)."""
        self._calls[outcome] += 1

    def count_loop(self, outcome: str, rounds: int) -> None:
        self._loops[outcome] += 1
        self._rounds += rounds

    def count_tokens(self, prompt: int, output: int) -> None:
        """Count the tokens of all requests of a loop, as the service reports them."""
        self._tokens["prompt"] += prompt
        self._tokens["output"] += output

    def count_ledger_hits(self, n: int = 1) -> None:
        """Count visible turns that were replaced by their true turns."""
        self._ledger_hits += n

    def ledger_miss(self, reason: str) -> None:
        """Count a turn that was not replaced although the session has entries with its words."""
        self.misses[reason] += 1

    def error(self, kind: str) -> None:
        self._errors[kind] += 1

    def render(self) -> bytes:
        """The metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    @cached_property
    def registry(self) -> CollectorRegistry:
        """The registry of the page, made at the first scrape."""
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "toolgraft_requests", "Requests to a Gemini surface.", labels=("surface", "operation")
        )
        for (surface, operation), n in self._requests.items():
            requests.add_metric((surface, operation), n)
        yield requests
        yield _by_label("toolgraft_calls", "Calls of grafted tools, by status.", "outcome", self._calls)
        yield _by_label("toolgraft_loops", "Answers made in a loop, by outcome.", "outcome", self._loops)
        yield CounterMetricFamily("toolgraft_loop_rounds", "Requests that loops sent upstream.", value=self._rounds)
        yield _by_label("toolgraft_loop_tokens", "Tokens of loops with several requests.", "kind", self._tokens)
        yield CounterMetricFamily(
            "toolgraft_ledger_hits", "Visible turns replaced by their true turns.", value=self._ledger_hits
        )
        yield _by_label(
            "toolgraft_ledger_misses",
            "Turns whose words the ledger knows, but that were not replaced, by reason.",
            "reason",
            self.misses,
        )
        yield _by_label("toolgraft_errors", "Errors, by kind.", "kind", self._errors)
        cached = GaugeMetricFamily(
            "toolgraft_cache_bytes", "Bytes that are remembered to be faster, by kind.", labels=("kind",)
        )
        for kind, size in self.cache_sizes().items():
            cached.add_metric((kind,), size)
        yield cached
        if self.store is not None:
            yield from _of_store(self.store)
        yield GaugeMetricFamily("toolgraft_tasks", "Tasks of the event loop that renders this page.", value=_tasks())


def _by_label[L: str](name: str, documentation: str, label: str, values: Counter[L]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=(label,))
    for value, n in values.items():
        family.add_metric((value,), n)
    return family


def _of_store(traffic: Traffic) -> Iterator[Metric]:
    answers = list(accumulate(traffic.buckets))
    buckets = [(str(bound), n) for bound, n in zip((*BOUNDS, "+Inf"), answers, strict=True)]
    yield HistogramMetricFamily(
        "toolgraft_store_operation_seconds",
        "Operations that the store's server answered, by their time.",
        buckets=buckets,
        sum_value=traffic.seconds,
    )
    yield _by_label("toolgraft_store_failures", "Operations that failed, by kind.", "kind", traffic.failures)
    yield GaugeMetricFamily(
        "toolgraft_store_connections", "Open connections to the store's server.", value=traffic.connections()
    )
    yield GaugeMetricFamily("toolgraft_store_running", "Operations that wait for an answer now.", value=traffic.running)
    states = GaugeMetricFamily(
        "toolgraft_store_breaker", "Processes whose circuit breaker is in this state.", labels=("state",)
    )
    for state in get_args(BreakerState.__value__):
        states.add_metric((state,), state == traffic.state)
    yield states
    yield CounterMetricFamily(
        "toolgraft_store_breaker_openings", "How often the circuit breaker has opened.", value=traffic.openings
    )


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no event loop runs here
        return 0
