from addon.metrics import Metrics


def test_what_was_counted_is_on_the_page() -> None:
    metrics = Metrics()
    metrics.request("developer", "generateContent")
    metrics.request("developer", "generateContent")
    metrics.request("vertex", "countTokens")
    metrics.captured(3)
    metrics.answered("done")
    metrics.ledger_hits(2)
    metrics.error("store")
    metrics.loop("answered", 3)
    metrics.loop("hung_up", 1)
    metrics.tokens(10, 4)
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
    first.ledger_hits()
    assert "toolgraft_ledger_hits_total 0.0" in second.render().decode()
