"""Calls on their way to an answer: by hand, by workers, after an approval."""

import asyncio
import contextlib
import gc
import itertools
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.graft.owners import is_being_run
from addon.loop import call_results
from addon.loop.call_run import CallRun
from store.models import Call, Executor, Status, ToolRules
from tests.loop.calling import PLACE, hangs, responses, returns
from tests.loop.conftest import Proxy, Scripted, call, says, until


async def test_a_call_that_could_not_be_run_has_its_answer_in_the_store(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*args: Any, **kwargs: Any) -> None:
        raise LookupError

    proxy.tools.add("tool", returns(1))
    await proxy.open()
    monkeypatch.setattr(CallRun, "_run", fails)
    (response,) = await responses(proxy, call("tool"))
    assert response == {"error": "the call could not be run: LookupError"}
    (record,) = await proxy.calls()
    assert (record.status, record.error) == (Status.FAILED, response["error"])


async def test_arguments_that_do_not_fit_never_reach_the_tool(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns(1), schema=PLACE)
    await proxy.open()
    (response,) = await responses(proxy, call("tool", place=3))
    assert "the arguments do not fit: `place`" in response["error"]
    assert proxy.tools.begun == []


@pytest.mark.parametrize("approval", [False, True])
async def test_arguments_that_do_not_match_a_hard_pattern_never_reach_the_tool(proxy: Proxy, approval: bool) -> None:
    schema = {"type": "object", "properties": {"place": {"pattern": "^(a|aa)+$"}}}
    proxy.tools.add("tool", returns(1), schema=schema, approval=approval)
    await proxy.open()
    (response,) = await responses(proxy, call("tool", place="a" * 60 + "!"))
    assert "does not match" in response["error"]
    assert proxy.tools.begun == []
    (record,) = await proxy.calls()
    assert record.status is Status.FAILED


async def test_an_answer_from_elsewhere_that_came_first_is_the_one_that_counts(proxy: Proxy) -> None:
    async def answered_meanwhile(**args: Any) -> str:
        (record,) = await proxy.calls()
        await proxy.store.answer(record.session, record.call_id, result="by hand")
        return "by the tool"

    proxy.tools.add("tool", answered_meanwhile)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"result": "by hand"}]


async def swallows() -> None:
    """Runs on whatever is done to it, for a moment."""
    for _ in range(2):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@pytest.mark.parametrize("rules", [{}, {"idempotent": True}, {"cache_ttl": 60.0}], ids=str)
@pytest.mark.parametrize("tool", [hangs, swallows])
async def test_an_answer_by_hand_ends_the_wait_for_a_call_that_is_being_run(
    proxy: Proxy, tool: Callable[..., Awaitable[Any]], rules: dict[str, Any]
) -> None:
    proxy.tools.add("tool", tool, **rules)
    await proxy.open()
    answers = asyncio.ensure_future(responses(proxy, call("tool")))
    await until(lambda: proxy.tools.begun == ["tool"])
    (record,) = await proxy.calls()
    await proxy.store.answer(record.session, record.call_id, result="by hand")
    async with asyncio.timeout(5):
        assert await answers == [{"result": "by hand"}]
    await proxy.executors.close()
    await until(lambda: proxy.tools.ended == ["tool"])


@pytest.mark.parametrize(("timeout", "answer_timeout"), [(0.01, 3600), (None, 0.01)], ids=["tool", "session"])
async def test_a_tool_s_own_time_limit_outranks_the_session_s_time_for_answers_by_hand(
    proxy: Proxy, timeout: float | None, answer_timeout: float
) -> None:
    await proxy.open()
    await proxy.declare({"name": "ask", "description": "Ask somebody."}, ask=ToolRules(timeout=timeout))
    await proxy.policy(delivery="hold", answer_timeout=answer_timeout)
    assert await responses(proxy, call("ask")) == [{"error": "nobody answered ask within 0.01 s"}]


async def test_a_call_that_was_answered_before_it_began_is_not_run(proxy: Proxy) -> None:
    async def answer_the_other(**args: Any) -> str:
        records = await proxy.calls()
        await proxy.store.answer(records[1].session, records[1].call_id, result="by hand")
        return "first"

    proxy.tools.add("first", answer_the_other)
    proxy.tools.add("second", returns("by the tool"), after=("first",))
    await proxy.open()
    assert await responses(proxy, call("first"), call("second")) == [{"result": "first"}, {"result": "by hand"}]
    assert proxy.tools.begun == ["first"]


async def test_a_call_whose_session_is_deleted_meanwhile_is_told_all_the_same(proxy: Proxy) -> None:
    async def deleted(**args: Any) -> str:
        await proxy.store.delete_session("default")
        return "fine"

    proxy.tools.add("tool", deleted)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"result": "fine"}]


# --- approval -------------------------------------------------------------------------------------------------


async def waiting(proxy: Proxy) -> Call:
    """The call that waits for an approval, as soon as one does."""
    async with asyncio.timeout(5):
        while True:
            last_event = await proxy.store.last_event_id()
            for record in await proxy.calls():
                if record.approval == "waiting":
                    return record
            await proxy.store.follow("default", last_event, 5)


@pytest.fixture
async def careful(proxy: Proxy) -> Proxy:
    proxy.tools.add("delete", returns("gone"), approval=True)
    await proxy.open()
    return proxy


async def test_a_call_that_needs_approval_runs_when_it_has_it(careful: Proxy) -> None:
    answers = asyncio.ensure_future(responses(careful, call("delete")))
    record = await waiting(careful)
    assert (record.owner, record.proxy_id) == ("loop", "this")
    assert careful.tools.begun == []
    await careful.store.decide(record.session, record.call_id, True)
    assert await answers == [{"result": "gone"}]


async def test_a_tool_that_is_always_approved_is_asked_for_again_once_it_has_changed(careful: Proxy) -> None:
    config = await careful.grafter.session_config("default")
    assert config is not None
    version = careful.executors.binding(config, "delete").version.hex()
    await careful.policy(always_approved={"delete": version, "other": version})
    careful.tools.add("other", returns("gone too"), approval=True)
    assert await responses(careful, call("delete")) == [{"result": "gone"}]
    assert [record.approval for record in await careful.calls()] == [None]
    careful.tools.add("delete", returns("gone"), {"type": "object"}, approval=True, timeout=7)
    await careful.open()
    for name in ("delete", "other"):
        answers = asyncio.ensure_future(responses(careful, call(name)))
        record = await waiting(careful)
        assert record.name == name
        await careful.store.decide(record.session, record.call_id, False)
        await answers


async def test_a_call_runs_with_the_arguments_that_a_person_changed(proxy: Proxy) -> None:
    async def delete(path: str) -> str:
        return f"{path} is gone"

    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    proxy.tools.add("delete", delete, schema, approval=True)
    await proxy.open()
    answers = asyncio.ensure_future(responses(proxy, call("delete", path="/")))
    record = await waiting(proxy)
    await proxy.store.decide(record.session, record.call_id, True, args={"path": "/tmp/x"})
    expected = {"the user changed the arguments to": {"path": "/tmp/x"}, "result": "/tmp/x is gone"}
    assert await answers == [expected]
    kept = await proxy.store.call(record.session, record.call_id)
    assert (kept.model_args, kept.result) == ({"path": "/"}, expected)


async def test_changed_arguments_that_do_not_fit_do_not_run(careful: Proxy) -> None:
    """The control API refuses them, if it knows the schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    careful.tools.add("count", returns(1), schema, approval=True)
    await careful.open()
    answers = asyncio.ensure_future(responses(careful, call("count", n=1)))
    record = await waiting(careful)
    await careful.store.decide(record.session, record.call_id, True, args={"n": "one"})
    (answered,) = await answers
    assert "the arguments do not fit" in answered["error"]
    assert careful.tools.begun == []


async def test_a_denial_is_told_with_its_reason(careful: Proxy) -> None:
    answers = asyncio.ensure_future(responses(careful, call("delete")))
    denied = await careful.store.decide("default", (await waiting(careful)).call_id, False, reason="not on Fridays")
    assert await answers == [{"error": denied.error}]
    assert denied.error is not None
    assert "not on Fridays" in denied.error
    assert careful.tools.begun == []


async def test_a_call_that_nobody_approves_is_denied_in_the_end(careful: Proxy) -> None:
    await careful.policy(approval_timeout=0.01)
    assert await responses(careful, call("delete")) == [{"error": "nobody approved this call within 0.01 s"}]
    (record,) = await careful.calls()
    assert (record.status, record.approval) == (Status.DENIED, "denied")
    assert careful.tools.begun == []


async def test_an_answer_by_hand_ends_the_wait_for_an_approval(careful: Proxy) -> None:
    answers = asyncio.ensure_future(responses(careful, call("delete")))
    await careful.store.answer("default", (await waiting(careful)).call_id, result="by hand")
    assert await answers == [{"result": "by hand"}]
    assert careful.tools.begun == []


async def test_a_call_is_no_worker_s_while_it_waits_for_its_turn_and_an_approval(proxy: Proxy) -> None:
    go_on = asyncio.Event()

    async def first() -> str:
        await go_on.wait()
        return "first"

    proxy.tools.add("first", first)
    proxy.tools.add("delete", returns("gone"), approval=True, after=("first",))
    await proxy.open()
    answers = asyncio.ensure_future(responses(proxy, call("first"), call("delete")))
    record = await waiting(proxy)
    assert await proxy.store.claim("default", ["delete"], lease=10, worker="w") is None
    await proxy.store.decide(record.session, record.call_id, True)
    await until(lambda: proxy.tools.begun == ["first"])
    go_on.set()
    assert await answers == [{"result": "first"}, {"result": "gone"}]


async def test_nobody_is_asked_to_approve_arguments_that_do_not_fit(proxy: Proxy) -> None:
    proxy.tools.add("delete", returns("gone"), schema=PLACE, approval=True)
    await proxy.open()
    (response,) = await responses(proxy, call("delete", place=3))
    assert "do not fit" in response["error"]
    (record,) = await proxy.calls()
    assert (record.status, record.approval) == (Status.FAILED, None)


async def test_a_call_that_waits_for_approval_keeps_no_other_from_running(proxy: Proxy) -> None:
    proxy.tools.add("delete", returns("gone"), approval=True)
    proxy.tools.add("tool", returns(1))
    await proxy.open()
    await proxy.policy(parallel=1)
    answers = asyncio.ensure_future(responses(proxy, call("delete"), call("tool")))
    record = await waiting(proxy)
    await until(lambda: proxy.tools.ended == ["tool"])
    assert not await is_being_run(proxy.store, record)
    await proxy.store.decide(record.session, record.call_id, True)
    assert await answers == [{"result": "gone"}, {"result": 1}]


# --- workers and sessions -------------------------------------------------------------------------------------

WORKER = ToolRules(executor=Executor(type="worker"), timeout=5)
REMOTE: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}


async def claimed(proxy: Proxy) -> Call:
    async with asyncio.timeout(5):
        while True:
            await proxy.store.wait_claimable("default", ["remote"], 5)
            record = await proxy.store.claim("default", ["remote"], lease=10, worker="w")
            if record is not None:
                return record


async def test_a_worker_s_answer_is_waited_for(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER)
    answers = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    await proxy.store.answer("default", (await claimed(proxy)).call_id, result={"from": "the worker"})
    assert await answers == [{"from": "the worker"}]


async def test_a_worker_that_never_answers_is_an_error_for_the_model(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER.model_copy(update={"timeout": 0.01}))
    assert await responses(proxy, call("remote", place="Oslo")) == [
        {"error": "no worker answered remote within 0.01 s"}
    ]
    assert [one.status for one in await proxy.calls()] == [Status.FAILED]


async def claim_soon(proxy: Proxy, *, worker: str, lease: float) -> Call:
    """The call, as soon as it is free."""
    async with asyncio.timeout(5):
        while True:
            await proxy.store.wait_claimable("default", ["remote"], 5)
            record = await proxy.store.claim("default", ["remote"], lease=lease, worker=worker)
            if record is not None:
                return record


@pytest.mark.parametrize("lease", [0.15, 0.3])
async def test_a_call_of_a_worker_that_died_is_another_s_with_the_whole_time(
    leaping: None, proxy: Proxy, lease: float
) -> None:
    proxy.store.uptime = time.monotonic
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER.model_copy(update={"timeout": 0.2, "redeliver": True}))
    answers = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    for worker in ("first", "second"):
        await claim_soon(proxy, worker=worker, lease=lease)
    await proxy.store.answer(
        "default", (await claim_soon(proxy, worker="third", lease=lease)).call_id, result="the third's"
    )
    assert await answers == [{"result": "the third's"}]


async def test_workers_that_die_one_after_the_other_keep_nobody_waiting_for_ever(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_results, "_TAKEOVER", 0.01)
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER.model_copy(update={"timeout": 0.05, "idempotent": True}))
    answers = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    taking = asyncio.ensure_future(_take_for_ever(proxy))
    assert await answers == [{"error": "no worker answered remote within 0.05 s; the call may have run"}]
    taking.cancel()
    await asyncio.wait({taking})


async def _take_for_ever(proxy: Proxy) -> None:
    for number in itertools.count():
        await claim_soon(proxy, worker=str(number), lease=0.02)


async def test_arguments_are_checked_before_a_worker_s_answer_is_waited_for(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER)
    (response,) = await responses(proxy, call("remote", place=1))
    assert "do not fit" in response["error"]


async def test_a_call_is_freed_with_its_loop(proxy: Proxy) -> None:
    """At once: with each loop that is left to the garbage collector, it runs more often."""
    runs: list[weakref.ref[object]] = []

    async def tool() -> int:
        runs.extend(map(weakref.ref, proxy.runner.step.runs.values()))
        return 1

    proxy.tools.add("tool", tool)
    await proxy.open()
    proxy.upstream(Scripted([says(call("tool"))], [says("Done.", finish="STOP")]))
    gc.collect()
    gc.disable()
    try:
        await proxy.ask("hi")
        await asyncio.sleep(0)  # the tasks' callbacks
        assert [run() for run in runs] == [None]
    finally:
        gc.enable()
