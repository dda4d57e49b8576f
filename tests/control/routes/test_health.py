import httpx2
import pytest

from addon.metrics import Metrics
from store.base import Store, StoreUnavailable


async def test_health_says_the_version(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "version": "1.2.3"})


async def test_a_store_that_is_down_is_not_well(
    client: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down() -> None:
        raise StoreUnavailable("redis://user:secret@host")

    monkeypatch.setattr(store, "ping", down)
    answer = await client.get("/healthz")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["version"] == "1.2.3"
    assert "secret" not in answer.text


async def test_metrics_are_in_prometheus_form(client: httpx2.AsyncClient, metrics: Metrics) -> None:
    metrics.request("developer", "generateContent")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'toolgraft_requests_total{operation="generateContent",surface="developer"} 1.0' in answer.text
