"""Workers' calls in steps that became a placeholder: the rules of a loop apply to them too."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from addon.core.framing.documents import Document, encode
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing
from store.backends._states import WORKER_LOST
from store.models import Call, Executor, Status, ToolRules
from tests.contents import user
from tests.graft.captures import Stream
from tests.loop.calling import PLACE
from tests.loop.conftest import Proxy, call, says

TOOLS = ("first", "second")


async def given(proxy: Proxy, *calls: Document) -> Sequence[Call]:
    """The calls of a step that a client is given; all that there are."""
    target, _ = proxy.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    forward = await proxy.forwarded({"contents": [user("x")]}, target)
    assert forward.exchange is not None
    capture = Capture(proxy.grafter, forward.exchange, "application/json")
    await capture.whole(encode(says(*calls, finish="STOP")))
    return await proxy.calls()


async def prepared(proxy: Proxy, delivery: str = "placeholder", **rules: dict[str, Any]) -> None:
    """Two tools of workers, with these rules."""
    await proxy.open()
    await proxy.policy(delivery=delivery)
    worker = Executor(type="worker")
    declarations = [{"name": name, "description": "d", "parametersJsonSchema": PLACE} for name in TOOLS]
    await proxy.declare(*declarations, **{name: ToolRules(executor=worker, **rules.get(name, {})) for name in TOOLS})


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def claim(proxy: Proxy, *, lease: float = 60) -> Call | None:
    await settled()
    return await proxy.store.claim("default", TOOLS, lease=lease, worker="w")


async def claimed(proxy: Proxy, *, lease: float = 60) -> Call:
    async with asyncio.timeout(5):
        await proxy.store.wait_claimable("default", TOOLS, 5)
        found = await proxy.store.claim("default", TOOLS, lease=lease, worker="w")
    assert found is not None
    return found


async def final(proxy: Proxy, call: Call) -> Call:
    async with asyncio.timeout(5):
        call = await proxy.store.call(call.session, call.call_id)
        while not call.status.final:
            call = await proxy.store.wait_call(call, 5) or call
    return call


def to(name: str, place: Any = "Oslo") -> Document:
    return call(name, place=place)


async def test_a_worker_gets_the_call_and_no_proxy_waits_for_it_then(proxy: Proxy) -> None:
    await prepared(proxy)
    (record,) = await given(proxy, to("first"))
    assert record.owner == "workers"
    claimed_call = await claimed(proxy)
    assert (claimed_call.call_id, claimed_call.released, claimed_call.proxy_id) == (record.call_id, True, None)
    await proxy.store.drop("this")
    await proxy.store.answer("default", record.call_id, result={"ok": 1})
    assert (await final(proxy, record)).result == {"ok": 1}


async def test_arguments_that_do_not_fit_never_reach_a_worker(proxy: Proxy) -> None:
    await prepared(proxy, first={"approval": True})
    (record,) = await given(proxy, to("first", 3))
    assert (record.status, record.approval) == (Status.FAILED, None)
    assert "do not fit" in (record.error or "")
    assert await claim(proxy) is None


@pytest.mark.parametrize("order", [TOOLS, TOOLS[::-1]])
async def test_a_call_is_released_after_those_that_come_first(proxy: Proxy, order: Sequence[str]) -> None:
    await prepared(proxy, second={"after": ["first"]})
    await given(proxy, *map(to, order))
    first = await claimed(proxy)
    assert first.name == "first"
    assert await claim(proxy) is None
    await proxy.store.answer("default", first.call_id, error="no")
    assert (await claimed(proxy)).name == "second"


@pytest.mark.parametrize("order", [("manual", "first"), ("first", "manual")])
async def test_a_call_is_released_after_one_that_is_answered_by_hand(proxy: Proxy, order: Sequence[str]) -> None:
    await prepared(proxy)
    rules = ToolRules(executor=Executor(type="worker"), after=["manual"])
    await proxy.declare(*({"name": name, "description": "d"} for name in order), first=rules)
    records = {one.name: one for one in await given(proxy, *(to(name) for name in order))}
    assert await claim(proxy) is None
    await proxy.store.answer("default", records["manual"].call_id, result=1)
    assert (await claimed(proxy)).name == "first"


def manual(**rules: Any) -> tuple[Document, dict[str, ToolRules]]:
    """A tool whose calls are answered by hand, with its rules."""
    declaration = {"name": "manual", "description": "d", "parametersJsonSchema": PLACE}
    return declaration, {"manual": ToolRules(**rules)} if rules else {}


@pytest.mark.parametrize("rules", [{}, {"approval": True}], ids=["", "approval"])
async def test_arguments_of_a_call_that_is_answered_by_hand_are_checked(proxy: Proxy, rules: dict[str, Any]) -> None:
    await prepared(proxy)
    declaration, given_rules = manual(**rules)
    await proxy.declare(declaration, **given_rules)
    wrong, right = await given(proxy, to("manual", 3), to("manual"))
    assert (wrong.status, wrong.owner, wrong.approval) == (Status.FAILED, "hand", None)
    assert "do not fit" in (wrong.error or "")
    assert (right.status, right.owner, right.approval) == (Status.PENDING, "hand", "waiting" if rules else None)


async def test_patterns_of_arguments_are_checked_though_nobody_runs_the_call(proxy: Proxy) -> None:
    await prepared(proxy)
    pattern = {"type": "object", "properties": {"place": {"type": "string", "pattern": "^(a|a)*$"}}}
    await proxy.declare({"name": "manual", "description": "d", "parametersJsonSchema": pattern})
    wrong, right = await given(proxy, to("manual", "Oslo"), to("manual", "a"))
    assert "do not fit" in ((await final(proxy, wrong)).error or "")
    assert not (await proxy.store.call("default", right.call_id)).status.final


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_that_is_answered_by_hand_waits_for_an_approval_from_birth_on(
    proxy: Proxy, approved: bool
) -> None:
    await prepared(proxy)
    declaration, rules = manual(approval=True)
    await proxy.declare(declaration, **rules)
    (record,) = await given(proxy, to("manual"))
    assert (record.approval, record.proxy_id) == ("waiting", None)
    decided = await proxy.store.decide("default", record.call_id, approved)
    assert decided.status is (Status.PENDING if approved else Status.DENIED)


async def test_a_python_tool_s_rules_hold_where_its_call_is_answered_by_hand(proxy: Proxy) -> None:
    async def careful(place: str) -> str:
        raise AssertionError("nobody runs it")

    proxy.tools.add("careful", careful, PLACE, approval=True)
    await proxy.open()
    await proxy.policy(delivery="placeholder")
    wrong, right = await given(proxy, to("careful", 3), to("careful"))
    assert [one.owner for one in (wrong, right)] == ["hand"] * 2
    assert (wrong.status, right.status, right.approval) == (Status.FAILED, Status.PENDING, "waiting")


async def test_a_call_that_the_client_runs_is_its_alone(proxy: Proxy) -> None:
    await prepared(proxy, delivery="passthrough")
    declaration, rules = manual(approval=True)
    await proxy.declare(declaration, **rules)
    for record in await given(proxy, to("manual", 3), to("manual")):
        assert (record.status, record.owner, record.approval) == (Status.PENDING, "hand", None)


async def test_a_repeated_call_waits_as_long_as_the_one_it_repeats(proxy: Proxy) -> None:
    await prepared(proxy)
    rules = ToolRules(executor=Executor(type="worker"), after=["manual"], timeout=0.01)
    await proxy.declare(*({"name": name, "description": "d"} for name in ("manual", "first")), first=rules)
    target, _ = proxy.target(Framing.SSE, "developer", "gemini-3-flash-preview")
    for ends in (False, True):
        forward = await proxy.forwarded({"contents": [user("x")]}, target)
        assert forward.exchange is not None
        capture = Stream(proxy.grafter, forward.exchange, "text/event-stream")
        finish = {"finish": "STOP"} if ends else {}
        await capture.feed(b"data: " + encode(says(to("manual"), to("first"), **finish)) + b"\r\n\r\n")
        if ends:
            await capture.finish()
        else:
            await capture.hang_up()
    *_, repeated = [one for one in await proxy.calls() if one.name == "first"]
    assert await proxy.store.wait_call(repeated, 0.1) is None, "it has no answer of its own"
    manual, *_ = await proxy.calls()
    await proxy.store.answer("default", manual.call_id, result=1)
    claimed_call = await claimed(proxy)
    await proxy.store.answer("default", claimed_call.call_id, result="once")
    assert (await final(proxy, repeated)).result == "once"


async def test_a_call_is_released_once_it_is_approved(proxy: Proxy) -> None:
    await prepared(proxy, first={"approval": True})
    (record,) = await given(proxy, to("first"))
    assert record.approval == "waiting"
    assert await claim(proxy) is None
    await proxy.store.decide("default", record.call_id, True)
    assert (await claimed(proxy)).call_id == record.call_id


async def test_a_call_that_is_denied_is_never_released(proxy: Proxy) -> None:
    await prepared(proxy, first={"approval": True})
    (record,) = await given(proxy, to("first"))
    await proxy.store.decide("default", record.call_id, False)
    assert await claim(proxy) is None
    assert (await final(proxy, record)).status is Status.DENIED


async def test_identical_calls_of_an_idempotent_tool_are_run_once(proxy: Proxy) -> None:
    await prepared(proxy, first={"idempotent": True})
    records = await given(proxy, to("first"), to("first"), to("first", "Rome"))
    claimed_call = [await claimed(proxy), await claimed(proxy)]
    assert [one.args["place"] for one in claimed_call] == ["Oslo", "Rome"]
    assert await claim(proxy) is None
    await proxy.store.answer("default", claimed_call[0].call_id, result=7)
    assert [(await final(proxy, one)).result for one in records[:2]] == [7, 7]


async def test_a_result_is_kept_for_the_next_call(proxy: Proxy) -> None:
    await prepared(proxy, first={"cache_ttl": 60})
    await given(proxy, to("first"))
    await proxy.store.answer("default", (await claimed(proxy)).call_id, result=7)
    await settled()
    *_, second = await given(proxy, to("first"))
    assert (await final(proxy, second)).result == 7
    assert await claim(proxy) is None


async def test_no_more_calls_are_released_at_once_than_may_run(proxy: Proxy) -> None:
    await prepared(proxy)
    await proxy.policy(delivery="placeholder", parallel=1)
    await given(proxy, to("first"), to("second"))
    first = await claimed(proxy)
    assert await claim(proxy) is None
    await proxy.store.answer("default", first.call_id, result=1)
    assert (await claimed(proxy)).name == "second"


async def test_a_worker_has_the_time_of_the_tool_from_its_claim_on(proxy: Proxy) -> None:
    await prepared(proxy, first={"timeout": 0.05})
    (record,) = await given(proxy, to("first"))
    await asyncio.wait_for(proxy.store.wait_call(await proxy.store.call("default", record.call_id), 0.1), 5)
    assert (await proxy.store.call("default", record.call_id)).status is Status.PENDING, "nobody has taken it"
    await claimed(proxy)
    ended = await final(proxy, record)
    assert ended.error == "no worker answered first within 0.05 s; the call may have run"


async def test_a_call_whose_worker_is_lost_fails_at_the_end_of_its_lease(proxy: Proxy) -> None:
    await prepared(proxy, first={"timeout": 60})
    (record,) = await given(proxy, to("first"))
    await claimed(proxy, lease=0.05)
    ended = await final(proxy, record)
    assert (ended.status, ended.error) == (Status.FAILED, WORKER_LOST)


async def test_calls_that_were_not_released_expire_with_their_proxy(proxy: Proxy) -> None:
    await prepared(proxy, second={"after": ["first"]})
    first, second = await given(proxy, to("first"), to("second"))
    await settled()
    await proxy.store.drop("this")
    assert (await final(proxy, second)).status is Status.EXPIRED
    assert (await claimed(proxy)).call_id == first.call_id


async def test_calls_that_the_client_was_given_itself_are_no_worker_s(proxy: Proxy) -> None:
    await prepared(proxy, delivery="passthrough")
    (record,) = await given(proxy, to("first"))
    assert (record.owner, record.proxy_id) == ("hand", None)
    assert await claim(proxy) is None


async def capture_of(proxy: Proxy) -> Stream:
    target, _ = proxy.target(Framing.SSE, "developer", "gemini-3-flash-preview")
    forward = await proxy.forwarded({"contents": [user("x")]}, target)
    assert forward.exchange is not None
    return Stream(proxy.grafter, forward.exchange, "text/event-stream")


async def test_a_call_of_an_answer_that_broke_off_is_not_given_to_workers_again(proxy: Proxy) -> None:
    await prepared(proxy)
    broken = await capture_of(proxy)
    await broken.feed(b"data: " + encode(says(to("first"))) + b"\r\n\r\n")
    claimed_call = await claimed(proxy)
    await broken.hang_up()
    retry = await capture_of(proxy)
    await retry.feed(b"data: " + encode(says(to("first"), to("second"), finish="STOP")) + b"\r\n\r\n")
    await retry.finish()
    assert (await claimed(proxy)).name == "second"
    assert await claim(proxy) is None
    await proxy.store.answer("default", claimed_call.call_id, result="once")
    first, repeated, _ = await proxy.calls()
    assert first.call_id == claimed_call.call_id
    assert (await final(proxy, repeated)).result == "once"


@pytest.mark.parametrize("answered", [True, False])
async def test_a_call_of_an_answer_that_broke_off_is_answered_by_hand_once(proxy: Proxy, answered: bool) -> None:
    await prepared(proxy)
    declaration, _ = manual()
    await proxy.declare(declaration)
    broken = await capture_of(proxy)
    await broken.feed(b"data: " + encode(says(to("manual"))) + b"\r\n\r\n")
    (first,) = await proxy.calls()
    if answered:
        await proxy.store.answer("default", first.call_id, result="once")
    await broken.hang_up()
    retry = await capture_of(proxy)
    twice = says(to("manual"), to("manual"), to("manual", "Rome"), finish="STOP")
    await retry.feed(b"data: " + encode(twice) + b"\r\n\r\n")
    await retry.finish()
    await retry.runner.settle_handover(True)
    kept, *others = await proxy.calls()
    assert kept.call_id == first.call_id
    assert [one.args["place"] for one in others] == ["Oslo", "Rome"], "each stands for one"
    (turn,) = await proxy.turns()
    assert [slot.call_id for slot in turn.steps[-1].slots] == [one.call_id for one in (kept, *others)]
