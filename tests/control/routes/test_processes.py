"""What the processes of one proxy say of themselves, through any of them."""

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.metrics import Metrics


def process(slot: int, requests: int) -> dict[str, Any]:
    metrics = Metrics()
    for _ in range(requests):
        metrics.count_request("developer", "generateContent")
    server = {"name": "files", "is_up": slot == 1, "tools": 2, "error": None if slot == 1 else "it is starting"}
    return {
        "pid": 100 + slot,
        "slot": slot,
        "requests": requests,
        "loops": 1,
        "live": 0,
        "outage": "not reachable" if slot == 2 else "",
        "mcp": [server],
        "metrics": metrics.render().decode(),
    }


@pytest.fixture
def processes(app: ControlApp) -> None:
    async def states(request_id: str = "") -> Sequence[dict[str, Any]]:
        return [process(2, 3), process(1, 4)]

    app.api.processes = states


@pytest.mark.usefixtures("processes")
async def test_each_process_is_listed(client: httpx2.AsyncClient) -> None:
    items = (await client.get("/v1/processes")).json()["items"]
    assert [(one["slot"], one["pid"], one["requests"]) for one in items] == [(1, 101, 4), (2, 102, 3)]
    assert [one["mcp"][0]["error"] for one in items] == [None, "it is starting"]
    assert [one["outage"] for one in items] == ["", "not reachable"]
    assert "metrics" not in items[0]


@pytest.mark.usefixtures("processes")
async def test_metrics_are_sums(client: httpx2.AsyncClient) -> None:
    page = (await client.get("/metrics")).text
    assert 'toolgraft_requests_total{operation="generateContent",surface="developer"} 7.0' in page


async def test_a_supervisor_that_does_not_answer_is_told(app: ControlApp, client: httpx2.AsyncClient) -> None:
    async def states(request_id: str = "") -> Sequence[dict[str, Any]]:
        raise OSError("the supervisor does not answer")

    app.api.processes = states
    for path in ("/v1/processes", "/metrics"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["detail"]) == (503, "the supervisor does not answer")
