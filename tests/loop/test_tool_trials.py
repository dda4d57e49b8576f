"""A tool is tried: a call without a conversation, by the tool's rules."""

import asyncio
from typing import Any

import pytest

from addon.loop.tool_trials import ToolTrials
from addon.web.problems import Problem
from store.models import Call, Executor, Owner, Status, ToolRules
from tests.loop.calling import PLACE, returns
from tests.loop.conftest import Proxy, until


async def begin(proxy: Proxy, name: str = "tool", **args: Any) -> Call:
    return await ToolTrials(proxy.executors, proxy.grafter.session_config).begin(
        "default", name, args, lambda owner: None
    )


async def end(proxy: Proxy, call: Call) -> Call:
    async with asyncio.timeout(20):
        while not call.status.final:
            call = await proxy.store.wait_call(call, 20) or call
    return call


async def test_a_try_is_a_call_that_says_so(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns({"celsius": 3}), schema=PLACE)
    await proxy.open()
    begun = await begin(proxy, place="Oslo")
    ended = await end(proxy, begun)
    assert (ended.status, ended.result, ended.args) == (Status.DONE, {"celsius": 3}, {"place": "Oslo"})
    assert (ended.surface, ended.model, ended.owner) == ("try", "", "loop")
    (turn,) = await proxy.turns()
    assert (turn.surface, turn.pair, turn.delivered, turn.visible) == ("try", b"", True, [])


async def test_a_try_waits_for_an_approval_as_every_call(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns(1), approval=True)
    await proxy.open()
    begun = await begin(proxy)
    assert begun.approval == "waiting"
    assert proxy.tools.begun == []
    await proxy.store.decide("default", begun.call_id, True)
    assert (await end(proxy, begun)).status is Status.DONE
    denied = await begin(proxy)
    await proxy.store.decide("default", denied.call_id, False, reason="no")
    assert (await end(proxy, denied)).status is Status.DENIED
    assert proxy.tools.begun == ["tool"]


async def test_a_try_ends_by_the_tool_s_timeout(proxy: Proxy) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    proxy.tools.add("tool", hangs, timeout=0.01)
    await proxy.open()
    ended = await end(proxy, await begin(proxy))
    assert ended.status is Status.FAILED
    assert "0.01 s" in str(ended.error)


async def test_workers_run_tries_of_their_tools(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare({"name": "theirs"}, theirs=ToolRules(executor=Executor(type="worker")))
    begun = await begin(proxy, "theirs")
    await proxy.store.wait_claimable("default", ["theirs"], 20)
    claimed = await proxy.store.claim("default", ["theirs"], worker="w", lease=30)
    assert claimed is not None
    assert claimed.call_id == begun.call_id
    await proxy.store.answer("default", begun.call_id, result=1)
    assert (await end(proxy, begun)).result == 1


@pytest.mark.parametrize(
    ("name", "args", "status", "words"),
    [
        ("nobody", {}, 409, "nobody has no executor"),
        ("unknown", {}, 404, "session default has no tool unknown"),
        ("tool", {"place": 3}, 422, "args: do not fit the parameters of tool: `place`"),
    ],
)
async def test_what_cannot_be_tried_is_refused_and_not_stored(
    proxy: Proxy, name: str, args: Any, status: int, words: str
) -> None:
    proxy.tools.add("tool", returns(1), schema=PLACE)
    await proxy.open()
    await proxy.declare({"name": "nobody"})
    with pytest.raises(Problem, match=words) as refused:
        await begin(proxy, name, **args)
    assert refused.value.status == status
    assert await proxy.calls() == []
    assert await proxy.turns() == []


async def test_a_session_with_an_empty_toolset_has_no_tool_to_try(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns(1))
    await proxy.open()
    await proxy.declare()
    with pytest.raises(Problem, match="has no tool tool"):
        await begin(proxy)


async def test_who_may_not_try_what_the_proxy_runs_is_refused_before_it_runs(proxy: Proxy) -> None:
    def check(owner: Owner) -> None:
        owners.append(owner)
        raise Problem(403, "not yours")

    owners: list[Owner] = []
    proxy.tools.add("tool", returns(1))
    await proxy.open()
    with pytest.raises(Problem, match="not yours"):
        await ToolTrials(proxy.executors, proxy.grafter.session_config).begin("default", "tool", {}, check)
    assert owners == ["loop"]
    assert await proxy.calls() == []


async def test_only_so_many_run_at_a_time(proxy: Proxy) -> None:
    go, running = asyncio.Event(), 0

    async def waits() -> None:
        nonlocal running
        running += 1
        await go.wait()

    proxy.tools.add("tool", waits)
    await proxy.open()
    trials = ToolTrials(proxy.executors, proxy.grafter.session_config)
    calls = [await trials.begin("default", "tool", {}, lambda owner: None) for _ in range(12)]
    await until(lambda: running == 8)
    go.set()
    assert [(await end(proxy, call)).status for call in calls] == [Status.DONE] * 12
