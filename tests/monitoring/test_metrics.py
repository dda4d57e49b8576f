import asyncio
import sys

import pytest

from addon.monitoring.metrics import Metrics
from store.base import Traffic


def test_the_page_shows_all_counts() -> None:
    metrics = Metrics()
    metrics.count_request("developer", "generateContent")
    metrics.count_request("developer", "generateContent")
    metrics.count_request("vertex", "countTokens")
    metrics.count_captured(3)
    metrics.count_ended("done")
    metrics.count_ledger_hits(2)
    metrics.error("store")
    metrics.count_loop("answered", 3)
    metrics.count_loop("hung_up", 1)
    metrics.count_tokens(10, 4)
    page = metrics.render().decode()
    for line in (
        'toolgraft_requests_total{operation="generateContent",surface="developer"} 2.0',
        'toolgraft_requests_total{operation="countTokens",surface="vertex"} 1.0',
        'toolgraft_calls_total{outcome="captured"} 3.0',
        'toolgraft_calls_total{outcome="done"} 1.0',
        "toolgraft_ledger_hits_total 2.0",
        'toolgraft_errors_total{kind="store"} 1.0',
        'toolgraft_loops_total{outcome="answered"} 1.0',
        'toolgraft_loops_total{outcome="hung_up"} 1.0',
        "toolgraft_loop_rounds_total 4.0",
        'toolgraft_loop_tokens_total{kind="prompt"} 10.0',
        'toolgraft_loop_tokens_total{kind="output"} 4.0',
        "# TYPE toolgraft_requests_total counter",
    ):
        assert line in page


def test_two_proxies_of_one_process_count_for_themselves() -> None:
    first, second = Metrics(), Metrics()
    first.count_ledger_hits()
    assert "toolgraft_ledger_hits_total 0.0" in second.render().decode()


async def test_the_tasks_of_the_event_loop_are_counted() -> None:
    metrics = Metrics()
    before = _tasks(metrics)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(asyncio.Event().wait())
        assert _tasks(metrics) == before + 1
        waiting.cancel()


def test_without_an_event_loop_there_are_no_tasks() -> None:
    assert _tasks(Metrics()) == 0


def _tasks(metrics: Metrics) -> float:
    value = metrics.registry.get_sample_value("toolgraft_tasks")
    assert value is not None
    return value


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
@pytest.mark.parametrize("name", ["process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"])
def test_the_page_shows_the_resources_of_the_process(name: str) -> None:
    value = Metrics().registry.get_sample_value(name)
    assert value is not None
    assert value > 0


def test_the_page_has_the_bytes_that_are_remembered_by_kind() -> None:
    metrics = Metrics()
    metrics.cache_sizes = lambda: {"prefixes": 3, "true turns": 0}
    page = metrics.render().decode()
    assert 'toolgraft_cache_bytes{kind="prefixes"} 3.0' in page
    assert 'toolgraft_cache_bytes{kind="true turns"} 0.0' in page


def test_the_exchanges_with_a_store_s_server_are_counted() -> None:
    metrics, traffic = Metrics(), Traffic()
    metrics.store = traffic
    traffic.answered(0.0004)
    traffic.answered(9.0)
    traffic.failures["timeout"] += 1
    traffic.running, traffic.connections, traffic.openings = 5, lambda: 3, 1
    traffic.state = "open"
    page = metrics.render().decode()
    for line in (
        "# TYPE toolgraft_store_operation_seconds histogram",
        'toolgraft_store_operation_seconds_bucket{le="0.0005"} 1.0',
        'toolgraft_store_operation_seconds_bucket{le="5.0"} 1.0',
        'toolgraft_store_operation_seconds_bucket{le="+Inf"} 2.0',
        "toolgraft_store_operation_seconds_count 2.0",
        "toolgraft_store_operation_seconds_sum 9.0004",
        'toolgraft_store_failures_total{kind="timeout"} 1.0',
        'toolgraft_store_failures_total{kind="skipped"} 0.0',
        "toolgraft_store_connections 3.0",
        "toolgraft_store_running 5.0",
        'toolgraft_store_breaker{state="closed"} 0.0',
        'toolgraft_store_breaker{state="open"} 1.0',
        'toolgraft_store_breaker{state="half_open"} 0.0',
        "toolgraft_store_breaker_openings_total 1.0",
    ):
        assert f"{line}\n" in page, line
    assert "toolgraft_store" not in Metrics().render().decode()
