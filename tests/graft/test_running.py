"""Calls that are being run are waited for, whatever the settings say of pending ones."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document, decode
from addon.graft.exchange import Abandoned, Forward, Outcome, Reply
from addon.graft.owners import ByHand, InitialState
from addon.graft.session_config import SessionConfig
from addon.surfaces.incoming import Operation
from store.backends.memory import MemoryStore
from store.models import Call
from tests.contents import call, model, response, user
from tests.graft.conftest import SEARCH, WEATHER, Graft, answer, target


class Owned(ByHand):
    """Calls of these tools have this initial state."""

    def __init__(self, after: Mapping[str, Collection[str]] | None = None, /, **initial_states: InitialState) -> None:
        self.initial_states = initial_states
        self.after = after or {}

    def initial_state(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> InitialState:
        return self.initial_states.get(call.name, InitialState())

    def comes_after(self, config: SessionConfig, name: str) -> Collection[str]:
        return self.after.get(name, ())


LOOP = InitialState("loop", proxy_id="p")
WORKERS = InitialState("workers", detached=True)


@pytest.fixture
async def graft() -> Graft:
    store = MemoryStore()
    await store.open()
    await store.hold("p", 3600)
    return Graft(store)


async def step(
    graft: Graft, *calls: Document, initial_states: dict[str, InitialState] | None = None, **policy: Any
) -> tuple[list[Document], list[Call]]:
    """A chat whose last model turn is a step of these calls."""
    graft.grafter.owners = Owned(**(initial_states or {}))
    await graft.tools(WEATHER, SEARCH, **policy)
    visible_turn = await graft.ask([user("x")], answer(*calls))
    return [user("x"), visible_turn, user("go on")], await graft.calls()


async def claimed(graft: Graft, call: Call, lease: float = 60) -> None:
    await graft.store.release(call.session, call.call_id, detached=True)
    assert await graft.store.claim(call.session, [call.name], lease=lease, worker="w") is not None


async def responses_in(outcome: Outcome) -> Sequence[Document]:
    assert isinstance(outcome, Forward)
    return [p["functionResponse"]["response"] for p in _parts(outcome) if "functionResponse" in p]


def _parts(outcome: Forward) -> list[Document]:
    return [part for content in decode(outcome.body)["contents"] for part in content["parts"]]


async def settled(task: asyncio.Future[Outcome]) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("on_pending", ["pass", "wait", "block"])
async def test_a_call_that_a_proxy_runs_is_waited_for(graft: Graft, on_pending: str, begun: bool) -> None:
    chat, (running, _) = await step(
        graft,
        call("get_weather"),
        call("search"),
        initial_states={"get_weather": LOOP},
        on_pending=on_pending,
        pending_timeout=0,
    )
    if begun:
        await graft.store.start(running.session, running.call_id, loop_id="l")
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.answer(running.session, running.call_id, result={"ok": 1})
    outcome = await request
    if on_pending == "block":
        assert isinstance(outcome, Reply), "for the others the settings hold"
    else:
        assert await responses_in(outcome) == [{"ok": 1}, {"error": "no result"}]


async def test_a_call_of_a_proxy_that_dies_is_waited_for_no_more(graft: Graft) -> None:
    chat, (one,) = await step(graft, call("get_weather"), initial_states={"get_weather": LOOP})
    await graft.store.start(one.session, one.call_id, loop_id="l")
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.drop("p")
    (response,) = await responses_in(await request)
    assert "may have run" in response["error"]


async def test_a_call_that_waits_for_an_approval_is_waited_for_no_more(graft: Graft) -> None:
    initial_state = LOOP._replace(approval=True)
    chat, (one,) = await step(graft, call("get_weather"), initial_states={"get_weather": initial_state})
    assert await responses_in(await graft.request({"contents": chat})) == []
    await graft.store.decide(one.session, one.call_id, True)
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.answer(one.session, one.call_id, result={"ok": 1})
    assert await responses_in(await request) == [{"ok": 1}]


async def test_a_call_that_no_worker_has_taken_is_waited_for_as_the_settings_say(graft: Graft) -> None:
    chat, (one,) = await step(graft, call("get_weather"), initial_states={"get_weather": WORKERS})
    await graft.store.release(one.session, one.call_id, detached=True)
    assert await responses_in(await graft.request({"contents": chat})) == []


async def test_a_call_that_a_worker_has_is_waited_for_as_long_as_its_lease_holds(graft: Graft) -> None:
    chat, (one,) = await step(graft, call("get_weather"), initial_states={"get_weather": WORKERS})
    await claimed(graft, one)
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.answer(one.session, one.call_id, result={"ok": 1})
    assert await responses_in(await request) == [{"ok": 1}]


async def test_calls_that_workers_take_during_the_wait_are_all_waited_for(graft: Graft) -> None:
    """Their leases last longer than the wait may."""
    initial_states = {"get_weather": WORKERS, "search": WORKERS}
    both = call("get_weather"), call("search")
    chat, calls = await step(graft, *both, initial_states=initial_states, on_pending="wait")
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    for one in calls:
        await claimed(graft, one)
    for one in calls:
        assert not await settled(request)
        await graft.store.answer(one.session, one.call_id, result={"name": one.name})
    assert await responses_in(await request) == [{"name": "get_weather"}, {"name": "search"}]


@pytest.mark.parametrize("redeliver", [True, False])
async def test_a_worker_that_let_its_lease_run_out_is_not_waited_for(graft: Graft, redeliver: bool) -> None:
    now = [1000.0]
    graft.store.clock = graft.store.uptime = lambda: now[0]
    initial_state = WORKERS._replace(redeliver=redeliver)
    chat, (one,) = await step(graft, call("get_weather"), initial_states={"get_weather": initial_state})
    await claimed(graft, one)
    now[0] = 1030.0
    await graft.store.renew(one.session, one.call_id, "w", 60)
    now[0] = 1080.0
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request), "a lease that was renewed counts as it is now"
    request.cancel()
    now[0] = 1091.0
    responses = await responses_in(await graft.request({"contents": chat}))
    assert [("may have run" in one["error"]) for one in responses] == ([] if redeliver else [True])


async def test_the_end_of_a_lease_ends_the_wait(graft: Graft) -> None:
    chat, (one,) = await step(graft, call("get_weather"), initial_states={"get_weather": WORKERS})
    await claimed(graft, one, lease=0.05)
    async with asyncio.timeout(5):
        (response,) = await responses_in(await graft.request({"contents": chat}))
    assert "may have run" in response["error"]


async def test_calls_that_wait_for_an_answer_by_hand_are_not_waited_for(graft: Graft) -> None:
    chat, _ = await step(graft, call("get_weather"))
    assert await responses_in(await graft.request({"contents": chat})) == []


async def test_a_call_whose_turn_comes_after_one_that_nobody_runs_is_not_waited_for(graft: Graft) -> None:
    chat, (by_hand, one) = await step(graft, call("get_weather"), call("search"), initial_states={"search": LOOP})
    graft.grafter.owners = Owned({"search": ["get_weather"]}, search=LOOP)
    assert await responses_in(await graft.request({"contents": chat})) == []
    await graft.store.answer(by_hand.session, by_hand.call_id, result={"ok": 1})
    request = asyncio.ensure_future(graft.request({"contents": chat}))
    assert not await settled(request)
    await graft.store.answer(one.session, one.call_id, result={"ok": 2})
    assert await responses_in(await request) == [{"ok": 1}, {"ok": 2}]


async def test_counting_tokens_waits_for_nothing(graft: Graft) -> None:
    chat, _ = await step(graft, call("get_weather"), initial_states={"get_weather": LOOP})
    outcome = await graft.request({"contents": chat}, target(Operation.COUNT))
    assert isinstance(outcome, Forward)


async def test_a_client_that_hangs_up_ends_the_wait(graft: Graft) -> None:
    chat, _ = await step(graft, call("get_weather"), initial_states={"get_weather": LOOP})

    async def gone() -> None:
        return None

    assert await graft.request({"contents": chat}, hangup=gone) == Abandoned()


async def test_a_mixed_step_waits_for_its_other_half(graft: Graft) -> None:
    graft.grafter.owners = Owned(get_weather=LOOP)
    await graft.tools(WEATHER, client_tools="keep")
    own: list[Document] = [{"functionDeclarations": [{"name": "own"}]}]
    body: Document = {"contents": [user("x")], "tools": own}
    visible_turn = await graft.ask([user("x")], answer(call("get_weather", id="i1"), call("own", id="i2")), tools=own)
    (one,) = await graft.calls()
    body["contents"] = [user("x"), visible_turn, user(response("own", id="i2"))]
    request = asyncio.ensure_future(graft.request(body))
    assert not await settled(request)
    await graft.store.answer(one.session, one.call_id, result={"ok": 1})
    assert await responses_in(await request) == [{"ok": 1}, {"result": "own"}]
    assert visible_turn == model(call("own", id="i2"))
