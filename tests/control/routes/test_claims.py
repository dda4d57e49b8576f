import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from store.base import Store

CLAIM = "/v1/calls/claim"


async def claim(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    answer = await client.post(CLAIM, json={"session": "default", "names": ["get_weather"], **body})
    assert answer.status_code in (200, 204), answer.text
    return answer


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_claim_gets_the_oldest_call_and_runs_it(client: httpx2.AsyncClient, store: Store, capture: Any) -> None:
    await capture("c0", name="get_time")
    await capture("c1")
    await capture("c2")
    before = store.clock()
    call = (await claim(client, worker="w1", lease=5)).json()
    assert (call["call_id"], call["status"], call["worker"]) == ("c1", "running", "w1")
    assert before + 5 <= call["lease_until"] <= store.clock() + 5
    assert (await client.get("/v1/calls/c1")).json() == call
    assert (await claim(client)).json()["call_id"] == "c2"
    nothing = await claim(client)
    assert (nothing.status_code, nothing.content) == (204, b"")


async def test_a_worker_without_a_name_gets_one(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    await capture("c2")
    names = [(await claim(client)).json()["worker"] for _ in range(2)]
    assert len(set(names)) == 2
    renewed = await client.post("/v1/calls/c1/renew", json={"worker": names[0]})
    assert renewed.status_code == 200


async def test_each_call_goes_to_one_of_those_who_wait(client: httpx2.AsyncClient, capture: Any) -> None:
    async with asyncio.timeout(5):
        waiting = [asyncio.ensure_future(claim(client, wait=60, worker=f"w{n}")) for n in range(2)]
        await settled()
        await capture("other", session="work")
        await capture("c0", name="get_time")
        await settled()
        assert not any(task.done() for task in waiting)
        await capture("c1")
        await capture("c2")
        found = [(await task).json()["call_id"] for task in waiting]
    assert sorted(found) == ["c1", "c2"]


async def test_one_who_waits_gets_a_call_as_soon_as_its_lease_runs_out(
    client: httpx2.AsyncClient, store: Store, capture: Any
) -> None:
    await capture("c1", redeliver=True)
    await store.claim("default", ["get_weather"], lease=0.2, worker="dead")
    started = time.monotonic()
    async with asyncio.timeout(5):
        call = (await claim(client, wait=60, worker="w2")).json()
    assert (call["call_id"], call["worker"]) == ("c1", "w2")
    assert time.monotonic() - started < 1


async def test_one_who_waits_gets_a_call_that_is_given_back(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    await claim(client, worker="w1")
    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(claim(client, wait=60, worker="w2"))
        await settled()
        assert (await client.post("/v1/calls/c1/renew", json={"worker": "w1", "lease": 0})).json()[
            "status"
        ] == "pending"
        assert (await waiting).json()["worker"] == "w2"


async def test_a_call_that_needs_an_approval_comes_once_it_is_approved(
    client: httpx2.AsyncClient, store: Store, capture: Any
) -> None:
    tool = {"name": "get_weather", "executor": {"type": "worker"}, "approval": True}
    await client.put("/v1/sessions/default/tools", json={"tools": [tool]})
    await capture("c1", approval="waiting", loop_id="loop")
    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(claim(client, wait=60))
        await settled()
        assert not waiting.done()
        await store.decide("default", "c1", True)
        assert (await waiting).json()["approval"] == "approved"


async def test_a_wait_ends_with_nothing_when_its_time_is_out(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(5):
        assert (await claim(client, wait=0.02)).status_code == 204


async def test_a_wait_ends_with_nothing_when_the_server_stops(client: httpx2.AsyncClient, app: ControlApp) -> None:
    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(claim(client, wait=60))
        await settled()
        app.stop()
        assert (await waiting).status_code == 204


async def test_a_worker_that_has_hung_up_gets_no_call(exchange: Callable[..., Any], store: Store, capture: Any) -> None:
    body = b'{"session": "default", "names": ["get_weather"], "wait": 60}'
    poll = exchange(CLAIM, headers={"content-type": "application/json"}, body=body)
    await settled()
    await poll.leave()
    assert poll.task.done()
    await capture("c1")
    assert (await store.call("default", "c1")).status == "pending"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"session": "a b"}, "session"),
        ({"names": []}, "names"),
        ({"names": "get_weather"}, "names"),
        ({"names": [1]}, "names.0"),
        ({"wait": 61}, "wait"),
        ({"wait": -1}, "wait"),
        ({"lease": 0}, "lease"),
        ({"lease": 3601}, "lease"),
        ({"worker": ""}, "worker"),
        ({"worker": "w" * 201}, "worker"),
        ({"lese": 1}, "lese"),
    ],
)
async def test_a_claim_that_does_not_fit_is_refused_by_name(
    client: httpx2.AsyncClient, store: Store, capture: Any, body: Any, field: str
) -> None:
    await capture("c1")
    answer = await client.post(CLAIM, json={"session": "default", "names": ["get_weather"], **body})
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert (await store.call("default", "c1")).status == "pending"


@pytest.mark.parametrize("missing", ["session", "names"])
async def test_a_claim_says_whose_calls_and_which(client: httpx2.AsyncClient, missing: str) -> None:
    body: dict[str, Any] = {"session": "default", "names": ["get_weather"]}
    del body[missing]
    answer = await client.post(CLAIM, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, missing)


async def test_a_lease_is_renewed_by_its_worker_only(client: httpx2.AsyncClient, store: Store, capture: Any) -> None:
    await capture("c1")
    await claim(client, worker="w1", lease=1)
    renewed = (await client.post("/v1/calls/c1/renew", json={"worker": "w1", "lease": 600})).json()
    assert renewed["lease_until"] > store.clock() + 590
    refused = await client.post("/v1/calls/c1/renew", json={"worker": "w2", "lease": 600})
    assert (refused.status_code, refused.json()["status"]) == (409, 409)
    await client.post("/v1/calls/c1/result", json={"result": 1})
    late = await client.post("/v1/calls/c1/renew", json={"worker": "w1", "lease": 600})
    assert late.status_code == 409
    assert "done" in late.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "worker"), ({"worker": "w1", "lease": -1}, "lease"), ({"worker": "w1", "lease": 3601}, "lease")],
)
async def test_a_renewal_that_does_not_fit_is_refused_by_name(
    client: httpx2.AsyncClient, capture: Any, body: Any, field: str
) -> None:
    await capture("c1")
    await claim(client, worker="w1")
    answer = await client.post("/v1/calls/c1/renew", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_there_is_no_lease_of_an_unknown_call(client: httpx2.AsyncClient) -> None:
    assert (await client.post("/v1/calls/no/renew", json={"worker": "w1"})).status_code == 404


async def test_a_worker_s_answer_is_an_answer_as_any_other(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    await claim(client, worker="w1")
    answer = await client.post("/v1/calls/c1/result", json={"result": {"celsius": -3}})
    assert (answer.json()["status"], answer.json()["worker"], answer.json()["lease_until"]) == ("done", "w1", None)
