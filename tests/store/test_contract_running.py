"""The store's contract about running calls: claims, leases, approvals, over every backend."""

import asyncio
from typing import Any

import pytest

from store.base import (
    AlreadyAnswered,
    Decided,
    LeaseLost,
    NotPending,
    Store,
    UnknownCall,
)
from store.models import (
    Call,
    Executor,
    Policy,
    Status,
    ToolRules,
    Toolset,
)
from tests.store.conftest import TTL, Clock
from tests.store.records import WORKERS, a_call, a_turn, revision_of
from tests.store.records import save as save_any

WEATHER = ["get_weather"]


async def save(store: Store, turn_id: str, session: str = "one", **fields: Any) -> Call:
    """A turn with one call, of the id `c-TURN`, that any worker may have, but for these fields."""
    return await save_any(store, turn_id, session, call={**WORKERS, **fields})


async def claim(store: Store, worker: str = "w1", *, session: str = "one", lease: float = 30.0) -> str | None:
    call = await store.claim(session, WEATHER, lease=lease, worker=worker)
    return call.call_id if call else None


async def test_a_claim_takes_the_oldest_pending_call_of_the_tools_and_leases_it(store: Store, clock: Clock) -> None:
    await store.save_turn(a_turn("t0"), [a_call("c0", "t0", name="other")])
    await save(store, "t1", "two")
    first = await save(store, "t2")
    await save(store, "t3")
    clock.now += 5
    claimed = await store.claim("one", ["get_time", *WEATHER], lease=30.0, worker="w1")
    assert claimed == first.model_copy(
        update={
            "status": Status.RUNNING,
            "worker": "w1",
            "lease_until": clock.now + 30,
            "attempts": 1,
            "started_at": clock.now,
            "updated_at": clock.now,
        }
    )
    assert await store.call("one", "c-t2") == claimed
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("call.updated", claimed.model_dump(mode="json"))
    assert [await claim(store, "w2"), await claim(store, "w2")] == ["c-t3", None]
    assert await store.claim("one", [], lease=1.0, worker="w1") is None
    assert await claim(store, session="none") is None


async def test_each_call_goes_to_one_of_several_concurrent_claimers(store: Store) -> None:
    for number in range(3):
        await save(store, f"t{number}")
    found = await asyncio.gather(*(claim(store, f"w{number}") for number in range(5)))
    assert sorted(call_id or "" for call_id in found) == ["", "", "c-t0", "c-t1", "c-t2"]


async def test_a_call_whose_lease_ran_out_goes_to_the_next_claimer(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    assert await claim(store, "w1", lease=30.0) == "c-t1"
    clock.now += 29.9
    assert await claim(store, "w2") is None
    clock.now += 0.1
    assert await claim(store, "w2") == "c-t1"
    assert (await store.call("one", "c-t1")).worker == "w2"
    with pytest.raises(LeaseLost):
        await store.renew("one", "c-t1", "w1", 30.0)


async def test_a_final_call_is_not_claimed_and_has_no_lease(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    await claim(store)
    answered, _ = await store.answer("one", "c-t1", result=1)
    assert (answered.worker, answered.lease_until) == ("w1", None)
    clock.now += 1000
    assert await claim(store, "w2") is None


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_lease_is_a_time_above_zero(store: Store, lease: float) -> None:
    call = await save(store, "t1")
    with pytest.raises(ValueError, match="lease"):
        await claim(store, lease=lease)
    assert await store.call("one", "c-t1") == call


async def test_the_first_answer_wins_whoever_has_the_lease(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    await claim(store, "w1", lease=1.0)
    clock.now += 2
    await claim(store, "w2")
    assert (await store.answer("one", "c-t1", result="of w1"))[1] is True
    with pytest.raises(AlreadyAnswered):
        await store.answer("one", "c-t1", result="of w2")


async def test_the_next_lease_is_the_one_that_runs_out_first(store: Store, clock: Clock) -> None:
    for number in range(3):
        await save(store, f"t{number}")
    await save(store, "t9", "two")
    assert await store.next_lease("one", WEATHER) is None
    await claim(store, lease=50.0)
    await claim(store, lease=20.0)
    await claim(store, lease=1.0, session="two")
    assert await store.next_lease("one", WEATHER) == 20
    assert await store.next_lease("one", ["get_time"]) is None
    await store.answer("one", "c-t1", result=1)
    assert await store.next_lease("one", WEATHER) == 50
    clock.now += 60
    assert await store.next_lease("one", WEATHER) == 0, "until somebody claims the call"


async def test_a_lease_is_renewed_by_the_worker_that_has_it(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    await claim(store, lease=30.0)
    clock.now += 20
    before = await store.last_event_id()
    renewed = await store.renew("one", "c-t1", "w1", 30.0)
    assert renewed.lease_until == clock.now + 30
    assert await store.call("one", "c-t1") == renewed
    assert await store.last_event_id() == before, "nothing has happened"
    clock.now += 100
    assert (await store.renew("one", "c-t1", "w1", 5.0)).lease_until == clock.now + 5, "nobody else had claimed it"
    with pytest.raises(ValueError, match="lease"):
        await store.renew("one", "c-t1", "w1", -1.0)


@pytest.mark.parametrize(
    ("status", "approval"), [(Status.DONE, None), (Status.EXPIRED, None), (Status.DENIED, "denied")]
)
async def test_nobody_is_asked_about_a_call_that_is_over(store: Store, status: Status, approval: str | None) -> None:
    await save(store, "t1", approval="waiting")
    if status is Status.DONE:
        await store.answer("one", "c-t1", result=1)
    else:
        await store.settle("one", "c-t1", status, error="too late")
    call = await store.call("one", "c-t1")
    assert (call.status, call.approval) == (status, approval)
    assert (await store.events(after=None))[-1].data == call.model_dump(mode="json")
    with pytest.raises(Decided):
        await store.decide("one", "c-t1", True)


async def test_a_worker_may_name_a_tool_twice(store: Store) -> None:
    assert not await store.wait_claimable("one", [*WEATHER, *WEATHER], 0.001)
    await save(store, "t1")
    assert await store.wait_claimable("one", [*WEATHER, *WEATHER], 60)


async def test_a_call_is_given_back_with_a_lease_of_nothing(store: Store) -> None:
    call = await save(store, "t1")
    await claim(store, "w1")
    before = await store.last_event_id()
    back = await store.renew("one", "c-t1", "w1", 0)
    began = {"attempts": 1, "started_at": back.updated_at}
    assert back == call.model_copy(update=began | {"updated_at": back.updated_at})
    assert await store.events(after=before) != []
    assert await claim(store, "w2") == "c-t1"
    redelivered = await store.call("one", "c-t1")
    assert (redelivered.attempts, redelivered.started_at) == (2, back.started_at)


async def test_a_lease_that_is_not_the_worker_s_is_not_renewed(store: Store) -> None:
    for turn in ("pending", "running", "final", "own"):
        await save(store, turn)
    await store.start("one", "c-own", loop_id="loop")
    await claim(store, "w2")
    await claim(store, "w1")
    await claim(store, "w1")
    await store.renew("one", "c-pending", "w2", 0)
    await store.answer("one", "c-final", result=1)
    for call_id, worker in (("c-pending", "w2"), ("c-running", "w2"), ("c-final", "w1"), ("c-own", "w1")):
        with pytest.raises(LeaseLost) as lost:
            await store.renew("one", call_id, worker, 5.0)
        assert lost.value.call == await store.call("one", call_id)


async def test_a_call_that_the_proxy_runs_itself_is_nobody_else_s(store: Store, clock: Clock) -> None:
    call = await save(store, "t1")
    started = await store.start("one", "c-t1", loop_id="loop")
    assert started == call.model_copy(
        update={
            "status": Status.RUNNING,
            "loop_id": "loop",
            "attempts": 1,
            "started_at": clock.now,
            "updated_at": started.updated_at,
        }
    )
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("call.updated", started.model_dump(mode="json"))
    clock.now += 1000
    assert await claim(store) is None
    assert await store.start("one", "c-t1", loop_id="loop") == started
    assert await store.last_event_id() == event.event_id
    with pytest.raises(NotPending) as refused:
        await store.start("one", "c-t1", loop_id="another")
    assert refused.value.call == started


async def test_a_call_that_is_leased_or_final_is_not_started(store: Store) -> None:
    for turn in ("leased", "final"):
        await save(store, turn)
    await claim(store)
    await store.answer("one", "c-final", result=1)
    for call_id in ("c-leased", "c-final"):
        with pytest.raises(NotPending):
            await store.start("one", call_id, loop_id="loop")


async def test_a_call_that_waits_for_an_approval_is_run_by_nobody_until_it_has_it(store: Store) -> None:
    waiting = await save(store, "t1", approval="waiting", loop_id="loop")
    assert await claim(store) is None
    with pytest.raises(NotPending):
        await store.start("one", "c-t1", loop_id="loop")
    approved = await store.decide("one", "c-t1", True)
    assert approved == waiting.model_copy(update={"approval": "approved", "updated_at": approved.updated_at})
    assert await store.decide("one", "c-t1", True) == approved
    assert await claim(store) == "c-t1"
    assert (await store.decide("one", "c-t1", True)).status is Status.RUNNING, "the same again is fine at any time"
    with pytest.raises(Decided):
        await store.decide("one", "c-t1", False)


async def test_an_approved_call_can_be_started(store: Store) -> None:
    await save(store, "t1", approval="waiting", loop_id="loop")
    await store.decide("one", "c-t1", True)
    assert (await store.start("one", "c-t1", loop_id="loop")).status is Status.RUNNING


async def test_a_call_is_approved_with_other_arguments_and_its_result_says_so(store: Store, clock: Clock) -> None:
    for turn in ("t1", "t2", "t3"):
        await save(store, turn, approval="waiting", loop_id="loop")
    asked = (await store.call("one", "c-t1")).args
    approved = await store.decide("one", "c-t1", True, args={"city": "Bergen"})
    assert (approved.args, approved.asked_args, approved.model_args) == ({"city": "Bergen"}, asked, asked)
    assert await store.call("one", "c-t1") == approved
    for same in (None, {"city": "Bergen"}):
        assert await store.decide("one", "c-t1", True, args=same) == approved
    for other in (asked, {}):
        with pytest.raises(Decided):
            await store.decide("one", "c-t1", True, args=other)
    claimed = await store.claim("one", ["f"], lease=10, worker="w")
    assert claimed is None or claimed.args == {"city": "Bergen"}
    note = {"the user changed the arguments to": {"city": "Bergen"}}
    answered, _ = await store.answer("one", "c-t1", result={"ok": 1})
    assert answered.result == {**note, "result": {"ok": 1}}
    assert await store.answer("one", "c-t1", result={"ok": 1}) == (answered, False)
    await store.decide("one", "c-t2", True, args={"city": "Bergen"})
    failed, _ = await store.answer("one", "c-t2", error="no such city")
    assert failed.error == 'no such city (the user had changed the arguments to {"city":"Bergen"})'
    await store.decide("one", "c-t3", True, args=asked)
    assert (await store.call("one", "c-t3")).asked_args is None
    assert (await store.answer("one", "c-t3", result={"ok": 1}))[0].result == {"ok": 1}


@pytest.mark.parametrize(
    ("reason", "error"), [("", "the call was denied"), ("too dear", "the call was denied: too dear")]
)
async def test_a_denied_call_is_final_and_says_so(store: Store, reason: str, error: str) -> None:
    await save(store, "t1", approval="waiting", loop_id="loop")
    denied = await store.decide("one", "c-t1", False, reason=reason)
    assert (denied.status, denied.approval, denied.error) == (Status.DENIED, "denied", error)
    assert await store.decide("one", "c-t1", False) == denied
    with pytest.raises(Decided) as refused:
        await store.decide("one", "c-t1", True)
    assert refused.value.call == denied
    with pytest.raises(AlreadyAnswered):
        await store.answer("one", "c-t1", result=1)
    assert await claim(store) is None


async def test_a_call_that_waits_for_no_decision_accepts_none(store: Store) -> None:
    await save(store, "never")
    await save(store, "expired", approval="waiting", loop_id="loop")
    await store.settle("one", "c-expired", Status.EXPIRED, error="nobody decided")
    for call_id in ("c-never", "c-expired"):
        for approved in (True, False):
            with pytest.raises(Decided):
                await store.decide("one", call_id, approved)


async def test_one_of_two_concurrent_decisions_wins(store: Store) -> None:
    await save(store, "t1", approval="waiting", loop_id="loop")
    outcomes = await asyncio.gather(
        *(store.decide("one", "c-t1", approved) for approved in (False, True)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes].count(Decided) == 1


async def test_a_call_of_a_tool_that_needs_an_approval_is_claimed_with_one_only(store: Store, clock: Clock) -> None:
    await save(store, "before")
    assert await claim(store, lease=5.0) == "c-before"
    await store.put_toolset("one", Toolset(rules={"get_weather": ToolRules(approval=True)}))
    await save(store, "t1")
    await save(store, "t2", approval="waiting", loop_id="loop")
    await save(store, "t3", "two")
    assert await claim(store) is None
    assert await claim(store, session="two") == "c-t3", "that session's tool needs none"
    await store.decide("one", "c-t2", True)
    assert await claim(store) == "c-t2"
    clock.now += 5
    assert await claim(store) == "c-before", "it was let through before"


@pytest.mark.parametrize("status", [Status.DENIED, Status.EXPIRED])
@pytest.mark.parametrize("running", [False, True])
async def test_a_call_that_nobody_will_answer_is_settled(store: Store, status: Status, running: bool) -> None:
    await save(store, "t1")
    if running:
        await claim(store)
    settled = await store.settle("one", "c-t1", status, error="the client has left")
    assert (settled.status, settled.error, settled.lease_until) == (status, "the client has left", None)
    event = (await store.events(after=None))[-1]
    assert (event.type, event.data) == ("call.updated", settled.model_dump(mode="json"))
    assert await store.settle("one", "c-t1", Status.EXPIRED, error="again") == settled
    assert await store.last_event_id() == event.event_id
    with pytest.raises(AlreadyAnswered):
        await store.answer("one", "c-t1", result=1)
    assert await claim(store) is None


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_settled_call_says_whether_it_had_begun(store: Store, has_begun: bool) -> None:
    await save(store, "t1")
    await store.start("one", "c-t1", loop_id="loop")
    settled = await store.settle("one", "c-t1", Status.EXPIRED, error="no", has_begun=has_begun)
    assert settled.loop_id == ("loop" if has_begun else None)
    assert await store.call("one", "c-t1") == settled


async def test_an_answered_call_is_not_settled_any_more(store: Store) -> None:
    await save(store, "t1")
    answered, _ = await store.answer("one", "c-t1", result=1)
    assert await store.settle("one", "c-t1", Status.EXPIRED, error="too late") == answered


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING, Status.DONE, Status.FAILED])
async def test_settling_is_denying_or_expiring(store: Store, status: Status) -> None:
    call = await save(store, "t1")
    with pytest.raises(ValueError, match="settled"):
        await store.settle("one", "c-t1", status, error="no")
    assert await store.call("one", "c-t1") == call


async def test_methods_that_run_calls_refuse_unknown_calls(store: Store) -> None:
    for attempt in (
        store.renew("one", "c1", "w1", 1.0),
        store.start("one", "c1", loop_id="loop"),
        store.decide("one", "c1", True),
        store.settle("one", "c1", Status.EXPIRED, error="no"),
    ):
        with pytest.raises(UnknownCall, match="c1"):
            await attempt


async def test_the_revision_changes_with_every_state_of_a_call(store: Store) -> None:
    await save(store, "t1")
    await save(store, "t2", approval="waiting", loop_id="loop")
    await save(store, "t3")
    revisions = [await revision_of(store)]
    for change in (
        lambda: claim(store),
        lambda: store.renew("one", "c-t1", "w1", 60.0),
        lambda: store.decide("one", "c-t2", True),
        lambda: store.start("one", "c-t2", loop_id="loop"),
        lambda: store.settle("one", "c-t3", Status.EXPIRED, error="no"),
    ):
        await change()
        revisions.append(await revision_of(store))
    assert None not in revisions
    assert len(set(revisions)) == len(revisions)


async def test_calls_go_with_their_session_and_their_turns(store: Store, clock: Clock) -> None:
    await save(store, "t1", "two")
    await store.delete_session("two")
    assert await claim(store, session="two") is None
    await save(store, "t2", "two")
    clock.now += TTL + 1
    await store.expire()
    assert await claim(store, session="two") is None
    assert await store.next_lease("two", WEATHER) is None


async def test_events_hold_no_values_of_executors_headers(store: Store) -> None:
    executor = Executor(type="http", url="https://tools.example/run", headers={"Authorization": "Bearer s3cret"})
    rules = {"f": ToolRules(executor=executor, after=["g"], retries=2)}
    toolset = Toolset(declarations=[{"name": "f"}, {"name": "g"}], rules=rules)
    await store.put_toolset("one", toolset)
    session = await store.put_policy("one", Policy(parallel=2))
    assert session.toolset == toolset
    for event in await store.events(after=None):
        assert event.data["toolset"]["rules"]["f"]["executor"]["headers"] == {"Authorization": "***"}
    assert "s3cret" not in repr(session)
