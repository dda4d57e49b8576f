from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.control.routes import approvals
from addon.monitoring.metrics import Metrics
from store.base import Store
from store.models import Policy, Status
from tests.control.conftest import TOKEN

APPROVE, DENY = "/v1/calls/c1/approve", "/v1/calls/c1/deny"


@pytest.fixture
def client(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """One that says what its bodies are, empty ones as well."""
    client.headers["Content-Type"] = "application/json"
    return client


@pytest.mark.parametrize("body", [b"", b"{}"])
async def test_a_call_that_waits_is_approved_and_the_same_again_is_fine(
    client: httpx2.AsyncClient, store: Store, capture: Any, body: bytes
) -> None:
    await capture("c1", approval="waiting")
    for _ in range(2):
        answer = await client.post(APPROVE, content=body)
        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["approval"]) == ("pending", "approved")
    assert (await client.get("/v1/calls/c1")).json() == answer.json()
    assert (await client.post(DENY, json={})).status_code == 409


async def test_a_call_is_approved_with_other_arguments(
    client: httpx2.AsyncClient, app: ControlApp, capture: Any
) -> None:
    async def problems(session: str, name: str, args: dict[str, Any]) -> list[str]:
        assert (session, name) == ("default", "get_weather")
        return [] if isinstance(args.get("city"), str) else ["city is missing"]

    app.api.problems = problems
    await capture("c1", approval="waiting")
    refused = await client.post(APPROVE, json={"args": {"town": 1}})
    assert (refused.status_code, refused.json()["field"]) == (422, "args")
    assert refused.json()["detail"] == "args: do not fit the parameters of get_weather: city is missing"
    wrong: Any
    for wrong in ([], "x", 1):
        assert (await client.post(APPROVE, json={"args": wrong})).status_code == 422
    assert (await client.get("/v1/calls/c1")).json()["approval"] == "waiting"
    answer = (await client.post(APPROVE, json={"args": {"city": "Bergen"}})).json()
    assert (answer["args"], answer["asked_args"]) == ({"city": "Bergen"}, {"city": "Oslo"})
    assert (await client.post(APPROVE, json={"args": {"city": "Rome"}})).status_code == 409


async def test_a_tool_is_approved_always_until_that_is_taken_back(
    client: httpx2.AsyncClient, app: ControlApp, store: Store, capture: Any
) -> None:
    async def version(session: str, name: str) -> str:
        return "ab" * 16 if (session, name) == ("default", "get_weather") else ""

    await capture("c1", approval="waiting")
    assert (await client.post(APPROVE, json={"always": True})).status_code == 409, "the session has no tools any more"
    app.api.tool_version = version
    await store.put_policy("default", Policy(max_rounds=3))
    for _ in range(2):
        assert (await client.post(APPROVE, json={"always": True})).json()["approval"] == "approved"
    session = (await client.get("/v1/sessions/default")).json()
    assert (session["always_approved"], session["overrides"]) == (["get_weather"], ["max_rounds"])
    record = (await store.snapshot("default")).record
    assert record is not None
    assert record.policy == Policy(max_rounds=3, always_approved={"get_weather": "ab" * 16})
    for name in ("other", "get_weather", "get_weather"):
        assert (await client.delete(f"/v1/sessions/default/always_approved/{name}")).status_code == 204
        left = (await client.get("/v1/sessions/default")).json()["always_approved"]
        assert left == (["get_weather"] if name == "other" else [])
    record = (await store.snapshot("default")).record
    assert record is not None
    assert record.policy == Policy(max_rounds=3)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "the call was denied"),
        (b"{}", "the call was denied"),
        (b'{"reason": "too dear"}', "the call was denied: too dear"),
        (b'{"reason": "%b"}' % TOKEN.encode(), "the call was denied: ***"),
    ],
)
async def test_a_call_that_waits_is_denied_and_the_same_again_is_fine(
    client: httpx2.AsyncClient, store: Store, metrics: Metrics, capture: Any, body: bytes, error: str
) -> None:
    await capture("c1", approval="waiting")
    for _ in range(2):
        answer = await client.post(DENY, content=body)
        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["error"]) == ("denied", error)
    refused = await client.post(APPROVE)
    assert refused.status_code == 409
    assert "approval: denied" in refused.json()["detail"]
    assert b'toolgraft_calls_total{outcome="denied"} 1.0' in metrics.render()


@pytest.mark.parametrize("path", [APPROVE, DENY])
@pytest.mark.parametrize("noticed", [False, True])
async def test_a_call_whose_proxy_is_gone_is_decided_no_more(
    client: httpx2.AsyncClient, store: Store, capture: Any, path: str, noticed: bool
) -> None:
    await capture("c1", approval="waiting", proxy_id="a proxy before the restart")
    if noticed:
        await store.settle_lost()
    for _ in range(2):
        answer = await client.post(path)
        assert answer.status_code == 409
        assert "gone" in answer.json()["detail"]
    assert (await store.call("default", "c1")).status is Status.EXPIRED
    assert await store.claim("default", ["get_weather"], lease=1.0, worker="w") is None


async def test_a_decision_can_be_repeated_also_when_the_proxy_is_gone(
    client: httpx2.AsyncClient, store: Store, capture: Any
) -> None:
    await capture("c1", approval="waiting", proxy_id="p")
    await store.hold("p", 60)
    await store.decide("default", "c1", True)
    await store.drop("p")
    assert (await client.post(APPROVE)).status_code == 200


async def test_a_call_that_no_loop_waits_for_can_be_approved_at_any_time(
    client: httpx2.AsyncClient, store: Store, capture: Any
) -> None:
    await capture("c1", approval="waiting")
    assert await store.claim("default", ["get_weather"], lease=1.0, worker="w") is None
    assert (await client.post(APPROVE)).status_code == 200
    assert await store.claim("default", ["get_weather"], lease=1.0, worker="w") is not None


@pytest.mark.parametrize("path", [APPROVE, DENY])
@pytest.mark.parametrize("ended", [False, True])
async def test_a_call_that_does_not_wait_is_not_decided(
    client: httpx2.AsyncClient, store: Store, capture: Any, path: str, ended: bool
) -> None:
    await capture("c1")
    if ended:
        await store.settle("default", "c1", Status.EXPIRED, error="nobody decided in time")
    before = await store.call("default", "c1")
    answer = await client.post(path)
    assert (answer.status_code, answer.json()["status"]) == (409, 409)
    assert await store.call("default", "c1") == before


@pytest.mark.parametrize("path", ["/v1/calls/no/approve", "/v1/calls/no/deny"])
async def test_an_unknown_call_is_not_found(client: httpx2.AsyncClient, path: str) -> None:
    assert (await client.post(path)).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"), [({"reason": 1}, "reason"), ({"reason": "x" * 1001}, "reason"), ({"why": "x"}, "why")]
)
async def test_a_denial_that_does_not_fit_changes_nothing(
    client: httpx2.AsyncClient, store: Store, capture: Any, body: Any, field: str
) -> None:
    await capture("c1", approval="waiting")
    waiting = await store.call("default", "c1")
    answer = await client.post(DENY, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert await store.call("default", "c1") == waiting


# --- all at once --------------------------------------------------------------------------------------------------


async def test_all_that_wait_are_denied_of_a_session_or_a_tool(
    client: httpx2.AsyncClient, store: Store, capture: Any, metrics: Metrics
) -> None:
    for number, (session, name) in enumerate([("a", "f"), ("a", "g"), ("b", "f"), ("b", "g")]):
        await capture(f"c{number}", session=session, name=name, approval="waiting")
    await capture("other", session="a", name="f")
    for body, denied in (
        ({"session": "a", "name": "g", "reason": "no"}, ["c1"]),
        ({"name": "f"}, ["c0", "c2"]),
        ({}, ["c3"]),
        ({}, []),
    ):
        answer = await client.post("/v1/approvals/deny", json=body)
        assert answer.json() == {"denied": denied, "more": False}
    assert (await store.call("a", "c1")).error == "the call was denied: no"
    assert (await store.call("a", "other")).status is Status.PENDING
    assert b'toolgraft_calls_total{outcome="denied"} 4.0' in metrics.render()


async def test_more_than_one_request_denies_are_left(
    client: httpx2.AsyncClient, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_MOST_DENIED", 2)
    for number in range(3):
        await capture(f"c{number}", approval="waiting")
    assert (await client.post("/v1/approvals/deny", json={})).json() == {"denied": ["c0", "c1"], "more": True}
    assert (await client.post("/v1/approvals/deny", json={})).json() == {"denied": ["c2"], "more": False}


async def test_a_call_that_is_decided_meanwhile_stays_as_it_is(
    client: httpx2.AsyncClient, store: Store, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = store.decide

    async def overtaken(session: str, call_id: str, approved: bool, **more: Any) -> Any:
        if call_id == "c0":
            await decide(session, call_id, True)
        return await decide(session, call_id, approved, **more)

    for number in range(2):
        await capture(f"c{number}", approval="waiting")
    monkeypatch.setattr(store, "decide", overtaken)
    assert (await client.post("/v1/approvals/deny", json={})).json() == {"denied": ["c1"], "more": False}
    assert (await store.call("default", "c0")).approval == "approved"


async def test_a_token_for_one_session_denies_only_there(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c0", session="mine", approval="waiting")
    await capture("c1", session="other", approval="waiting")
    made = (await client.post("/v1/tokens", json={"scopes": ["approve"], "session": "mine"})).json()
    answer = await client.post("/v1/approvals/deny", json={}, headers={"Authorization": f"Bearer {made['token']}"})
    assert answer.json() == {"denied": ["c0"], "more": False}


async def test_only_the_named_calls_are_denied(client: httpx2.AsyncClient, capture: Any) -> None:
    for number in range(3):
        await capture(f"call_{number}", approval="waiting", owner="workers", released=False)
    answer = await client.post("/v1/approvals/deny", json={"call_ids": ["call_0", "call_2", "call_9"]})
    assert answer.json() == {"denied": ["call_0", "call_2"], "more": False}
    assert (await client.get("/v1/calls/call_1")).json()["approval"] == "waiting"
    assert (await client.post("/v1/approvals/deny", json={"call_ids": []})).json()["denied"] == []
