import httpx2
import pytest

from addon.control.app import ControlApp
from addon.monitoring.metrics import Metrics
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
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["version"] == "1.2.3"
    assert "secret" not in answer.text


async def test_live_is_told_from_ready(
    client: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch, app: ControlApp
) -> None:
    async def down() -> None:
        raise StoreUnavailable("no space")

    with monkeypatch.context() as patch:
        patch.setattr(store, "ping", down)
        assert (await client.get("/healthz")).status_code == 503
        assert (await client.get("/healthz/live")).status_code == 200
    assert (await client.get("/healthz")).status_code == 200
    app.stop()
    assert (await client.get("/healthz")).status_code == 503
    assert (await client.get("/healthz/live")).status_code == 200


async def test_metrics_are_in_prometheus_form(client: httpx2.AsyncClient, metrics: Metrics) -> None:
    metrics.count_request("developer", "generateContent")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'toolgraft_requests_total{operation="generateContent",surface="developer"} 1.0' in answer.text
