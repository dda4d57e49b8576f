"""The tools that a worker registers."""

import asyncio
from typing import Any

import httpx2
import pytest

from addon.cli.worker_client import Refused, Worker, with_tools, worker_declaration
from tests.cli.worker_bench import LEASE, TOOLS, Bench, Functions, Rules, Served, Tool, echo, serve


@pytest.mark.parametrize(
    ("rules", "fields"),
    [
        (Rules(), {}),
        (Rules(timeout=2.0, retries=0, cache_ttl=1.5), {"timeout": 2.0, "retries": 0, "cache_ttl": 1.5}),
        (Rules(after=("g",), idempotent=True, approval=True), {"after": ["g"], "idempotent": True, "approval": True}),
    ],
)
def test_a_tool_is_declared_with_its_rules(rules: Rules, fields: dict[str, Any]) -> None:
    declaration = {"name": "f", "description": "d"}
    assert worker_declaration(Tool(declaration, rules)) == {**declaration, "executor": {"type": "worker"}, **fields}


async def test_tools_are_registered_beside_those_of_others(bench: Bench) -> None:
    other = {"name": "g", "executor": {"type": "http", "url": "https://a.example", "headers": {"Key": "s3cret"}}}
    former = {"name": "f", "description": "old", "executor": {"type": "worker"}, "timeout": 3}
    document = {"tools": [former, other, {"googleSearch": {}}], "tool_choice": "required"}
    await bench.client.put(TOOLS, json=document)
    async with serve(bench, Functions(f=echo, h=echo)):
        answer = (await bench.client.get(TOOLS)).json()
    session = await bench.store.session("default")
    assert session is not None
    assert session.toolset is not None
    worker = {"executor": {"type": "worker"}}
    masked = {**other, "executor": {**other["executor"], "headers": {"Key": "***"}}}  # type: ignore[dict-item]
    assert answer["tools"] == [
        {"functionDeclarations": [{"name": "f", **worker}, masked, {"name": "h", **worker}]},
        {"googleSearch": {}},
    ]
    assert answer["tool_config"]["functionCallingConfig"] == {"mode": "ANY"}
    executor = session.toolset.rules["g"].executor
    assert executor is not None
    assert executor.headers == {"Key": "s3cret"}


async def test_a_token_for_workers_of_one_session_is_all_that_a_worker_needs(bench: Bench) -> None:
    other = {"name": "g", "executor": {"type": "http", "url": "https://a.example", "headers": {"Key": "s3cret"}}}
    await bench.client.put(TOOLS, json={"tools": [other]})
    grant = {"scopes": ["worker"], "session": "default"}
    made = (await bench.client.post("/v1/tokens", json=grant)).json()
    await bench.client.aclose()
    bench.client = bench.client_of(made["token"])
    async with serve(bench, Functions(f=echo)):
        await bench.capture("call_1", x=1)
        assert (await bench.final("call_1")).result == {"x": 1}


async def test_tools_that_are_registered_already_are_left_alone(bench: Bench) -> None:
    async with serve(bench, Functions(f=echo)):
        pass
    before = await bench.store.last_event_id()
    async with serve(bench, Functions(f=echo)):
        assert await bench.store.last_event_id() == before


async def test_workers_that_start_at_once_all_get_their_tools_in(bench: Bench) -> None:
    sources = [Functions(**{f"f{n}": echo}) for n in range(4)]
    async with (
        serve(bench, sources[0], ready=False) as one,
        serve(bench, sources[1], ready=False) as two,
        serve(bench, sources[2], ready=False) as three,
        serve(bench, sources[3], ready=False) as four,
    ):
        for served in (one, two, three, four):
            await served.until("serving")
        (functions,) = await bench.tools()
    assert {f["name"] for f in functions["functionDeclarations"]} == {"f0", "f1", "f2", "f3"}


@pytest.mark.parametrize("executor", [None, {"type": "http", "url": "https://a.example"}])
def test_a_name_that_is_another_tool_s_is_refused(executor: Any) -> None:
    existing = {"name": "f"} if executor is None else {"name": "f", "executor": executor}
    with pytest.raises(Refused, match="already has a tool f"):
        with_tools({"tools": [{"functionDeclarations": [existing]}]}, [{"name": "f", "executor": {"type": "worker"}}])


def test_a_tool_of_the_proxy_s_own_is_not_replaced() -> None:
    with pytest.raises(Refused, match="the proxy itself has a tool f"):
        with_tools({"tools": [], "shared": [{"name": "f"}]}, [{"name": "f", "executor": {"type": "worker"}}])


async def test_a_refusal_of_the_proxy_ends_the_worker_in_its_words(bench: Bench) -> None:
    source = Functions(f=echo)
    source.rules["f"] = Rules(after=("nobody",))
    served = Served(worker_of(bench.client, source), asyncio.Queue())
    with pytest.raises(Refused, match="'nobody'"):
        await served.task


async def test_a_token_that_is_not_known_ends_the_worker(bench: Bench) -> None:
    async with bench.client_of("other") as client:
        served = Served(worker_of(client, Functions(f=echo)), asyncio.Queue())
        with pytest.raises(Refused) as refused:
            await served.task
    assert refused.value.status == 401


def worker_of(client: httpx2.AsyncClient, source: Functions) -> Worker:
    return Worker(source, client, session="default", name="w", concurrency=1, lease=LEASE, report=lambda event: None)
