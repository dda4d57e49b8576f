"""The list of the last requests."""

import httpx2

from addon.control.app import ControlApp
from addon.core.summaries import CallSummary, Summary
from addon.monitoring.recent_requests import RecentRequests


async def listed(client: httpx2.AsyncClient, **query: str) -> list[str]:
    answer = await client.get("/v1/requests", params=query)
    assert answer.status_code == 200, answer.text
    return [one["session"] for one in answer.json()["items"]]


def fill(recent: RecentRequests) -> None:
    recent.end(Summary("one", status=200, calls=[CallSummary("f", {}, "done", 0.1)]))
    recent.end(Summary("two", status=500))
    recent.begin(Summary("three"))


async def test_requests_are_filtered_and_newest_first(app: ControlApp, client: httpx2.AsyncClient) -> None:
    fill(app.api.recent)
    assert await listed(client) == ["three", "two", "one"]
    assert await listed(client, session="two") == ["two"]
    assert await listed(client, tool="f") == ["one"]
    assert await listed(client, state="running") == ["three"]
    assert await listed(client, limit="1") == ["three"]
    wrong = await client.get("/v1/requests", params={"state": "odd"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "state")


async def test_a_token_of_one_session_gets_only_its_own(app: ControlApp, client: httpx2.AsyncClient) -> None:
    fill(app.api.recent)
    token = app.api.tokens.make(("read",), "two", "")[1]
    client.headers["authorization"] = f"Bearer {token}"
    assert await listed(client) == ["two"]
    assert (await client.get("/v1/requests?session=one")).status_code == 403
    client.headers["authorization"] = f"Bearer {app.api.tokens.make(('worker',), None, '')[1]}"
    assert (await client.get("/v1/requests")).status_code == 403
