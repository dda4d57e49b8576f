"""Calls that are being run are waited for, whatever the settings say of pending ones."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from addon.core.documents import Document, decode
from addon.graft.exchange import Abandoned, Forward, Outcome, Reply
from addon.surfaces.base import Operation
from store.backends.memory import MemoryStore
from store.models import Call
from tests.graft.conftest import SEARCH, WEATHER, Graft, answer, call, model, response, target, user


@pytest.fixture
async def graft() -> Graft:
    store = MemoryStore()
    await store.open()
    return Graft(store)


async def step(graft: Graft, *calls: Document, **policy: Any) -> tuple[list[Document], list[Call]]:
    """A chat whose last model turn is a step of these calls."""
    await graft.tools(WEATHER, SEARCH, **policy)
    shown = await graft.ask([user("x")], answer(*calls))
    return [user("x"), shown, user("go on")], await graft.calls()


async def told(outcome: Outcome) -> Sequence[Document]:
    assert isinstance(outcome, Forward)
    return [p["functionResponse"]["response"] for p in _parts(outcome) if "functionResponse" in p]


def _parts(outcome: Forward) -> list[Document]:
    return [part for content in decode(outcome.body)["contents"] for part in content["parts"]]


async def settled(task: asyncio.Future[Outcome]) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


@pytest.mark.parametrize("on_pending", ["pass", "wait", "block"])
async def test_a_call_that_this_process_runs_is_waited_for(graft: Graft, on_pending: str) -> None:
    chat, (running, _) = await step(
        graft, call("get_weather"), call("search"), on_pending=on_pending, pending_timeout=0
    )
    graft.grafter.running = lambda call_id: 5.0 if call_id == running.call_id else None
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.answer(running.call_id, result={"ok": 1})
    outcome = await request
    if on_pending == "block":
        assert isinstance(outcome, Reply), "for the others the settings hold"
    else:
        assert await told(outcome) == [{"ok": 1}, {"error": "no result"}]


async def test_no_call_is_waited_for_longer_than_it_may_take(graft: Graft) -> None:
    chat, (one, _) = await step(graft, call("get_weather"), call("search"))
    await graft.store.answer(one.call_id, result={"ok": 1})
    graft.grafter.running = lambda call_id: 0.01
    assert await told(await graft.request({"contents": chat})) == [{"ok": 1}, {"error": "no result"}]


async def test_a_call_that_ends_without_an_answer_is_waited_for_no_more(graft: Graft) -> None:
    chat, (one,) = await step(graft, call("get_weather"))
    running: dict[str, float] = {one.call_id: 5.0}
    graft.grafter.running = running.get
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    running.clear()
    await graft.store.ask_approval(one.call_id, "loop")
    assert await told(await request) == []


async def test_a_call_that_a_worker_has_is_waited_for_as_long_as_its_lease_holds(graft: Graft) -> None:
    chat, (one,) = await step(graft, call("get_weather"))
    assert await graft.store.claim("default", ["get_weather"], lease=60, worker="w") is not None
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.answer(one.call_id, result={"ok": 1})
    assert await told(await request) == [{"ok": 1}]


async def test_a_worker_that_let_its_lease_run_out_is_not_waited_for(graft: Graft) -> None:
    now = [1000.0]
    graft.store.clock = lambda: now[0]
    chat, (one,) = await step(graft, call("get_weather"))
    assert await graft.store.claim("default", ["get_weather"], lease=60, worker="w") is not None
    now[0] = 1030.0
    await graft.store.renew(one.call_id, "w", 60)
    now[0] = 1080.0
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request), "a lease that was renewed counts as it is now"
    request.cancel()
    now[0] = 1091.0
    assert await told(await graft.request({"contents": chat})) == []


async def test_calls_that_wait_for_an_answer_by_hand_are_not_waited_for(graft: Graft) -> None:
    chat, _ = await step(graft, call("get_weather"))
    assert await told(await graft.request({"contents": chat})) == []


async def test_counting_tokens_waits_for_nothing(graft: Graft) -> None:
    chat, _ = await step(graft, call("get_weather"))
    graft.grafter.running = lambda call_id: 5.0
    outcome = await graft.request({"contents": chat}, target(Operation.COUNT))
    assert isinstance(outcome, Forward)


async def test_a_client_that_hangs_up_ends_the_wait(graft: Graft) -> None:
    chat, _ = await step(graft, call("get_weather"))
    graft.grafter.running = lambda call_id: 5.0

    async def gone() -> None:
        return None

    assert await graft.request({"contents": chat}, hangup=gone) == Abandoned()


async def test_a_mixed_step_waits_for_its_other_half(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own: list[Document] = [{"functionDeclarations": [{"name": "own"}]}]
    body: Document = {"contents": [user("x")], "tools": own}
    shown = await graft.ask([user("x")], answer(call("get_weather", id="i1"), call("own", id="i2")), tools=own)
    (one,) = await graft.calls()
    graft.grafter.running = lambda call_id: 5.0
    body["contents"] = [user("x"), shown, user(response("own", id="i2"))]
    request = asyncio.ensure_future(graft.request(body))
    assert not await settled(request)
    await graft.store.answer(one.call_id, result={"ok": 1})
    assert await told(await request) == [{"ok": 1}, {"result": "own"}]
    assert shown == model(call("own", id="i2"))
