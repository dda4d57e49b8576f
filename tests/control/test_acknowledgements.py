"""Every acknowledgement of the control API is on disk: it follows a `sync` that began after the last write."""

from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from addon.control.app import ControlApp
from addon.monitoring.metrics import Metrics
from store.base import NotDurable, Store
from store.models import Status

WEATHER = {"name": "get_weather", "description": "d"}


@pytest.fixture
def writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each write and each sync of the store, in order."""
    writes: list[str] = []

    def noted(name: str) -> None:
        method = getattr(store, name)

        async def note(*arguments: Any, **named: Any) -> Any:
            result = await method(*arguments, **named)
            writes.append(name)
            return result

        monkeypatch.setattr(store, name, note)

    for name in (
        "answer",
        "decide",
        "claim",
        "renew",
        "put_policy",
        "put_toolset",
        "delete_session",
        "save_turn",
        "sync",
    ):
        noted(name)
    return writes


ACKNOWLEDGED = [
    ("POST", "/v1/calls/c1/result", {"result": 1}, "answer"),
    ("POST", "/v1/calls/c1/result", {"error": "no"}, "answer"),
    ("POST", "/v1/calls/waits/approve", {}, "decide"),
    ("DELETE", "/v1/sessions/default/always_approved/get_weather", None, "put_policy"),
    ("POST", "/v1/calls/waits/deny", {}, "decide"),
    ("POST", "/v1/approvals/deny", {}, "decide"),
    ("POST", "/v1/calls/claim", {"session": "default", "names": ["get_weather"]}, "claim"),
    ("PATCH", "/v1/sessions/default", {"delivery": "loop"}, "put_policy"),
    ("PUT", "/v1/sessions/default/tools", {"tools": [WEATHER]}, "put_toolset"),
    ("DELETE", "/v1/sessions/default/tools", None, "put_toolset"),
    ("DELETE", "/v1/sessions/default", None, "delete_session"),
    ("POST", "/v1/sessions/default/tools/get_weather/try", {}, "save_turn"),
]


@pytest.fixture
async def filled(app: ControlApp, client: httpx2.AsyncClient, capture: Any) -> None:
    app.api.try_tool = lambda session, name, args, check: capture("tried")
    await client.put("/v1/sessions/default/tools", json={"tools": [WEATHER]})
    await client.patch("/v1/sessions/default", json={"always_approved": {"get_weather": "ab" * 16}})
    await capture("c1")
    await capture("waits", approval="waiting", name="other")


@pytest.mark.parametrize(("method", "path", "body", "written"), ACKNOWLEDGED)
async def test_an_acknowledgement_comes_after_the_sync_of_its_write(
    client: httpx2.AsyncClient, filled: None, writes: list[str], method: str, path: str, body: Any, written: str
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.is_success, answer.text
    assert writes == [written, "sync"]


async def test_the_same_result_again_is_acknowledged_after_a_sync_as_well(
    client: httpx2.AsyncClient, filled: None, writes: list[str]
) -> None:
    """The first answer may have been lost before it was safe."""
    for _ in range(2):
        assert (await client.post("/v1/calls/c1/result", json={"result": 1})).status_code == 200
    assert writes == ["answer", "sync"] * 2


async def test_a_claim_of_what_may_run_twice_waits_for_no_disk(
    client: httpx2.AsyncClient, capture: Any, writes: list[str]
) -> None:
    await capture("c1", redeliver=True)
    writes.clear()
    answer = await client.post("/v1/calls/claim", json={"session": "default", "names": ["get_weather"]})
    assert answer.status_code == 200
    assert (await client.post("/v1/calls/c1/renew", json={"worker": answer.json()["worker"]})).status_code == 200
    assert writes == ["claim", "renew"]


@pytest.mark.parametrize(("method", "path", "body", "written"), ACKNOWLEDGED)
async def test_a_write_that_is_not_on_disk_is_not_acknowledged(
    client: httpx2.AsyncClient,
    store: Store,
    filled: None,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
    written: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        raise NotDurable("/home/me/graft.db-wal: Input/output error")

    monkeypatch.setattr(store, "sync", fails)
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 503
    assert "may be lost in a power failure" in answer.json()["detail"]
    assert "/home/me" not in answer.text
    assert "/home/me/graft.db-wal: Input/output error" in caplog.text
    assert b'toolgraft_errors_total{kind="store"} 1.0' in metrics.render()


async def test_a_call_whose_claim_is_not_safe_is_given_back(
    client: httpx2.AsyncClient, store: Store, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise NotDurable("no replica has confirmed the write")

    await capture("c1")
    claim = {"session": "default", "names": ["get_weather"]}
    with monkeypatch.context() as patch:
        patch.setattr(store, "sync", fails)
        assert (await client.post("/v1/calls/claim", json=claim)).status_code == 503
    assert (await store.call("default", "c1")).status is Status.PENDING
    assert (await client.post("/v1/calls/claim", json=claim)).json()["call_id"] == "c1"


NOT_IN_THE_STORE = {
    ("POST", "/v1/calls/{call_id}/renew"),  # forgotten, the lease ends as if nobody had renewed it
    ("POST", "/v1/sessions/{session}/tools/check"),  # it changes nothing
    ("POST", "/v1/tokens"),  # in files, by `write_file`
    ("DELETE", "/v1/tokens/{token_id}"),
    ("POST", "/v1/mcp/accept"),
    ("POST", "/v1/servers/{server:path}/restart"),
}


def test_every_route_that_changes_something_is_among_those_that_are_tried(app: ControlApp) -> None:
    def tried(route: Route, method: str) -> bool:
        return any(tried == method and route.path_regex.match(path) for tried, path, *_ in ACKNOWLEDGED)

    changing = [
        (m, r) for r in app.served.routes if isinstance(r, Route) for m in (r.methods or set()) - {"GET", "HEAD"}
    ]
    assert len(changing) > len(NOT_IN_THE_STORE)
    assert {(method, route.path) for method, route in changing if not tried(route, method)} == NOT_IN_THE_STORE
