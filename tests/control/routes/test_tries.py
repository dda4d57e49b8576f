"""Trying a tool: who may, what is refused, and what the answer is."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.graft.grafter import Grafter
from addon.loop.executors import Executors
from addon.loop.tool_trials import ToolTrials
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from store.base import Store
from store.models import Executor, Status, ToolRules, Toolset
from tests.loop.calling import PLACE, raises, returns
from tests.loop.conftest import Tools

PATH = "/v1/sessions/default/tools/own/try"


@pytest.fixture
async def tools(app: ControlApp, store: Store, settings: Settings) -> AsyncIterator[Tools]:
    """`own`, which the proxy runs, and the session's `theirs`, of workers, and `nobodys`, of nobody."""
    tools = Tools()
    tools.add("own", returns({"celsius": 3}), schema=PLACE)
    executors = Executors(store, tools, proxy_id="this")
    await store.hold("this", 3600)
    await executors.open()
    grafter = Grafter(store, settings, Metrics(), owners=executors)
    grafter.session_configs.share([tool.declaration for tool in executors.tools.values()])
    rules = {"theirs": ToolRules(executor=Executor(type="worker"))}
    await store.put_toolset("default", Toolset(declarations=[{"name": "theirs"}, {"name": "nobodys"}], rules=rules))
    app.api.try_tool = ToolTrials(executors, grafter.session_config).begin
    yield tools
    await executors.close()


async def test_the_answer_has_the_result_if_one_waits_for_it(client: httpx2.AsyncClient, tools: Tools) -> None:
    answer = await client.post(PATH, params={"wait": 30}, json={"args": {"place": "Oslo"}})
    assert answer.status_code == 200, answer.text
    call = answer.json()
    assert (call["status"], call["result"], call["surface"]) == ("done", {"celsius": 3}, "try")
    assert (await client.get(f"/v1/calls/{call['call_id']}")).json() == call


async def test_a_tool_that_fails_is_an_answer_as_well(client: httpx2.AsyncClient, tools: Tools) -> None:
    tools.add("own", raises(LookupError("no such city")))
    answer = await client.post(PATH, params={"wait": 30}, json={"args": {"place": "Oslo"}})
    assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    assert "no such city" in answer.json()["error"]


async def test_one_that_does_not_wait_gets_the_call_as_it_is(
    client: httpx2.AsyncClient, tools: Tools, store: Store
) -> None:
    go = asyncio.Event()

    async def waits(**args: Any) -> None:
        await go.wait()

    tools.add("own", waits)
    for query in ({}, {"wait": 0.01}):
        answer = await client.post(PATH, params=query, json={"args": {"place": "Oslo"}})
        assert answer.json()["status"] in ("pending", "running")
    go.set()
    call = await store.find_call(answer.json()["call_id"])
    async with asyncio.timeout(20):
        while call.status is not Status.DONE:
            call = await store.wait_call(call, 20) or call


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/sessions/default/tools/own/try", {"args": {"place": 3}}, 422, "args: do not fit the parameters of own"),
        ("/v1/sessions/default/tools/own/try", {"args": [1]}, 422, "args"),
        ("/v1/sessions/default/tools/own/try", {"arg": {}}, 422, "known names: args"),
        ("/v1/sessions/default/tools/none/try", {}, 404, "session default has no tool none"),
        ("/v1/sessions/default/tools/nobodys/try", {}, 409, 'give it an "executor"'),
        ("/v1/sessions/default/tools/own/try?wait=61", {}, 422, "wait"),
    ],
)
async def test_what_cannot_be_tried_is_named(
    client: httpx2.AsyncClient, tools: Tools, store: Store, path: str, body: Any, status: int, words: str
) -> None:
    answer = await client.post(path, json=body)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert (await store.calls()).items == []


async def test_a_number_that_json_cannot_hold_is_refused(
    client: httpx2.AsyncClient, tools: Tools, store: Store
) -> None:
    body = '{"args": {"place": "x", "n": 1e999}}'
    answer = await client.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert (await store.calls()).items == []


async def test_a_worker_tries_tools_of_workers_alone(app: ControlApp, client: httpx2.AsyncClient, tools: Tools) -> None:
    _, token = app.api.tokens.make(["worker"], None, "")
    headers = {"Authorization": f"Bearer {token}"}
    own = await client.post(PATH, json={"args": {"place": "Oslo"}}, headers=headers)
    assert (own.status_code, "needed: admin" in own.json()["detail"]) == (403, True)
    theirs = await client.post("/v1/sessions/default/tools/theirs/try", headers=headers)
    assert (theirs.status_code, theirs.json()["owner"]) == (200, "workers")
    assert tools.begun == []


async def test_a_proxy_that_ends_tries_nothing(app: ControlApp, client: httpx2.AsyncClient, tools: Tools) -> None:
    app.drain()
    assert (await client.post(PATH, json={"args": {"place": "Oslo"}})).status_code == 503
    assert tools.begun == []


async def test_without_anything_that_runs_tools_none_is_tried(client: httpx2.AsyncClient) -> None:
    answer = await client.post(PATH, json={})
    assert (answer.status_code, answer.json()["detail"]) == (409, "no tools run here")
