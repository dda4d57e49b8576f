"""Calls as they are run: rules, errors for the model, approval, workers, results that come from elsewhere."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from addon.core.documents import Document
from addon.loop import executors
from addon.loop.executors import MAX_CACHE, MAX_RESULT, Executors
from addon.surfaces.base import Framing
from addon.tools.base import ToolError
from store.models import Call, Executor, Status, ToolRules
from tests.loop.conftest import Played, Proxy, Scripted, call, says, until

ANSWER = [says("done", finish="STOP")]


async def responses(proxy: Proxy, *calls: Document) -> list[Document]:
    """What the model is told of a step of these calls."""
    upstream = proxy.upstream(Scripted([says(*calls, finish="STOP")], ANSWER))
    assert (await proxy.ask("x", framing=Framing.SSE)).text == "done"
    return [part["functionResponse"]["response"] for part in upstream.bodies[1]["contents"][-1]["parts"]]


def asking(proxy: Proxy, *calls: Document) -> asyncio.Future[Played]:
    proxy.upstream(Scripted([says(*calls, finish="STOP")], ANSWER))
    return asyncio.ensure_future(proxy.ask("x", framing=Framing.SSE))


def returns(value: Any) -> Callable[..., Awaitable[Any]]:
    async def tool(**args: Any) -> Any:
        return value

    return tool


def raises(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def tool(**args: Any) -> Any:
        raise error

    return tool


async def hangs(**args: Any) -> None:
    await asyncio.Event().wait()


PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


# --- results --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ({"a": 1}, {"a": 1}),
        ("text", {"result": "text"}),
        ('{"a": 1}', {"a": 1}),
        ([1, 2.5], {"result": [1, 2.5]}),
        (None, {"result": None}),
        ((True, {3}), {"result": [True, [3]]}),
    ],
)
async def test_a_result_is_an_object_for_the_model(proxy: Proxy, value: Any, response: Document) -> None:
    proxy.tools.add("tool", returns(value))
    await proxy.open()
    assert await responses(proxy, call("tool")) == [response]
    (record,) = await proxy.calls()
    assert (record.status, record.error) == (Status.DONE, None)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (raises(ToolError("no such place")), "no such place"),
        (raises(ValueError("bad")), "ValueError: bad"),
        (raises(TimeoutError("the database is slow")), "TimeoutError: the database is slow"),
        (raises(SystemExit(3)), "SystemExit: 3"),
        (raises(KeyboardInterrupt("now")), "KeyboardInterrupt: now"),
        (raises(BaseExceptionGroup("two", [SystemExit(3)])), "BaseExceptionGroup: two"),
        (raises(asyncio.CancelledError()), "cancelled from within"),
        (raises(RuntimeError("half of a pair: \ud800")), "half of a pair: ?"),
        (raises(RuntimeError("x" * 100_000)), "RuntimeError: xxx"),
        (hangs, "tool took longer than 0.02 s"),
        (returns("x" * 5_000_000), f"more than the {MAX_RESULT}"),
        (returns(b"\x00"), "bytes"),
        (returns(object()), "not JSON"),
        (returns({1: {2: object()}}), "not JSON"),
        (returns("\ud800"), "not JSON"),
    ],
)
async def test_a_tool_that_fails_is_an_error_for_the_model(
    proxy: Proxy, tool: Callable[..., Awaitable[Any]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.tools.add("tool", tool, timeout=0.02 if tool is hangs else None)
    proxy.tools.add("other", returns("fine"))
    await proxy.open()
    broken, fine = await responses(proxy, call("tool"), call("other"))
    assert list(broken) == ["error"]
    assert words in broken["error"]
    assert len(broken["error"]) < 5000
    assert fine == {"result": "fine"}
    assert [one.status for one in await proxy.calls()] == [Status.FAILED, Status.DONE]
    assert (await proxy.calls())[0].error == broken["error"]
    caplog.text.encode()  # raises where something could not be written


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("3")])
async def test_a_run_that_is_shared_ends_no_event_loop(proxy: Proxy, error: BaseException) -> None:
    proxy.tools.add("tool", raises(error), idempotent=True)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"error": f"{type(error).__name__}: 3"}]


async def test_a_call_that_could_not_be_run_has_its_answer_in_the_store(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*args: Any, **kwargs: Any) -> None:
        raise LookupError

    proxy.tools.add("tool", returns(1))
    await proxy.open()
    monkeypatch.setattr(proxy.executors, "_run", fails)
    (response,) = await responses(proxy, call("tool"))
    assert response == {"error": "the call could not be run: LookupError"}
    (record,) = await proxy.calls()
    assert (record.status, record.error) == (Status.FAILED, response["error"])


async def test_a_result_that_refers_to_itself_is_an_error_for_the_model(proxy: Proxy) -> None:
    loop: list[Any] = []
    loop.append(loop)
    proxy.tools.add("tool", returns(loop))
    await proxy.open()
    (response,) = await responses(proxy, call("tool"))
    assert "not JSON" in response["error"]


async def test_arguments_that_do_not_fit_never_reach_the_tool(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns(1), schema=PLACE)
    await proxy.open()
    (response,) = await responses(proxy, call("tool", place=3))
    assert "the arguments do not fit: `place`" in response["error"]
    assert proxy.tools.begun == []


async def test_an_answer_from_elsewhere_that_came_first_is_the_one_that_counts(proxy: Proxy) -> None:
    async def answered_meanwhile(**args: Any) -> str:
        (record,) = await proxy.calls()
        await proxy.store.answer(record.call_id, result="by hand")
        return "by the tool"

    proxy.tools.add("tool", answered_meanwhile)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"result": "by hand"}]


async def test_a_call_that_was_answered_before_it_began_is_not_run(proxy: Proxy) -> None:
    async def answer_the_other(**args: Any) -> str:
        records = await proxy.calls()
        await proxy.store.answer(records[1].call_id, result="by hand")
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


# --- rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]])
async def test_a_tool_runs_after_those_it_is_to_follow(proxy: Proxy, order: list[str]) -> None:
    proxy.tools.add("first", returns(1))
    proxy.tools.add("second", returns(2), after=("first",))
    await proxy.open()
    await responses(proxy, *map(call, order))
    assert proxy.tools.begun == ["first", "second"]


async def test_a_tool_waits_for_a_call_that_comes_later_in_the_stream(proxy: Proxy) -> None:
    hold = asyncio.Event()
    proxy.tools.add("first", returns(1))
    proxy.tools.add("second", returns(2), after=("first",))
    await proxy.open()
    proxy.upstream(Scripted([says(call("second")), hold, says(call("first")), says(finish="STOP")], ANSWER))
    waiting = asyncio.ensure_future(proxy.ask("x", framing=Framing.SSE))
    for _ in range(20):
        await asyncio.sleep(0)
    assert proxy.tools.begun == []
    hold.set()
    await waiting
    assert proxy.tools.begun == ["first", "second"]


@pytest.mark.parametrize(
    ("after", "calls"),
    [
        ({"a": ("a",)}, ["a", "a", "a"]),
        ({"a": ("b",), "b": ("a",)}, ["b", "a", "b"]),
        ({"a": ("b",), "b": ("c",), "c": ("a",)}, ["a", "b", "c"]),
    ],
    ids=["itself", "each other", "in a ring"],
)
async def test_tools_that_wait_for_each_other_run_in_the_order_of_their_calls(
    proxy: Proxy, after: dict[str, tuple[str, ...]], calls: list[str]
) -> None:
    for name, others in after.items():
        proxy.tools.add(name, returns(name), after=others)
    await proxy.open()
    assert await responses(proxy, *map(call, calls)) == [{"result": name} for name in calls]
    assert proxy.tools.begun == calls


async def test_a_failure_does_not_keep_those_that_follow_from_running(proxy: Proxy) -> None:
    proxy.tools.add("first", raises(ToolError("no")))
    proxy.tools.add("second", returns(2), after=("first",))
    await proxy.open()
    assert await responses(proxy, call("first"), call("second")) == [{"error": "no"}, {"result": 2}]


async def test_identical_calls_in_flight_run_once_where_that_is_allowed(proxy: Proxy) -> None:
    free = asyncio.Event()

    async def wait(**args: Any) -> Any:
        await free.wait()
        return args

    proxy.tools.add("once", wait, idempotent=True)
    proxy.tools.add("each", wait)
    await proxy.open()
    step = [call("once", a=1), call("once", a=1.0), call("once", a=2), call("each", a=1), call("each", a=1)]
    told = asyncio.ensure_future(responses(proxy, *step))
    await until(lambda: len(proxy.tools.begun) == 4)
    free.set()
    assert await told == [{"a": 1}, {"a": 1}, {"a": 2}, {"a": 1}, {"a": 1}]
    assert proxy.tools.begun.count("once") == 2
    await responses(proxy, call("once", a=1))
    assert proxy.tools.begun.count("once") == 3, "only those in flight are shared"


async def test_results_are_kept_for_as_long_as_the_rules_say(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("addon.loop.executors.time.monotonic", lambda: now[0])
    proxy.executors = Executors(proxy.store, proxy.tools)
    proxy.tools.add("kept", returns({"n": 1}), cache_ttl=10)
    proxy.tools.add("broken", raises(ToolError("no")), cache_ttl=10)
    await proxy.open()
    for at, begun in ((100.0, 1), (109.0, 1), (111.0, 2)):
        now[0] = at
        assert await responses(proxy, call("kept", a=1)) == [{"n": 1}]
        assert proxy.tools.begun.count("kept") == begun
    await responses(proxy, call("kept", a=2))
    assert proxy.tools.begun.count("kept") == 3, "other arguments are another call"
    for _ in range(2):
        await responses(proxy, call("broken"))
    assert proxy.tools.begun.count("broken") == 2, "a failure is not kept"
    assert [one.status for one in await proxy.calls()][:4] == [Status.DONE] * 4, "each call is recorded"


async def test_what_is_kept_has_a_bound(proxy: Proxy) -> None:
    proxy.tools.add("kept", returns("x" * 1_000_000), cache_ttl=1000)
    await proxy.open()
    for n in range(70):
        await responses(proxy, call("kept", n=n))
    assert 0.9 * MAX_CACHE < proxy.executors._cache.currsize <= MAX_CACHE


@pytest.mark.parametrize(
    ("retries", "error", "tries"),
    [
        (2, ToolError("busy", retryable=True), 3),
        (2, TimeoutError("slow"), 3),
        (2, ToolError("no such place"), 1),
        (2, ValueError("bad"), 1),
        (0, ToolError("busy", retryable=True), 1),
        (None, ToolError("busy", retryable=True), 1),
    ],
)
async def test_what_may_succeed_is_tried_again(proxy: Proxy, retries: int | None, error: Exception, tries: int) -> None:
    proxy.tools.add("tool", raises(error), retries=retries)
    await proxy.open()
    (response,) = await responses(proxy, call("tool"))
    assert str(error) in response["error"]
    assert len(proxy.tools.begun) == tries


async def test_a_try_that_succeeds_is_the_answer(proxy: Proxy) -> None:
    outcomes = [ToolError("busy", retryable=True), None]

    async def second_time() -> str:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "fine"

    proxy.tools.add("tool", second_time, retries=1)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"result": "fine"}]


async def test_a_session_s_timeout_holds_where_the_tool_has_none(proxy: Proxy) -> None:
    proxy.tools.add("tool", hangs)
    await proxy.open()
    await proxy.policy(tool_timeout=0.01)
    assert await responses(proxy, call("tool")) == [{"error": "tool took longer than 0.01 s"}]


# --- approval -------------------------------------------------------------------------------------------------


async def waiting(proxy: Proxy) -> Call:
    """The call that waits for an approval, as soon as one does."""
    async with asyncio.timeout(5):
        while True:
            seen = await proxy.store.last_event_id()
            for record in await proxy.calls():
                if record.approval == "waiting":
                    return record
            await proxy.store.wait(after=seen, timeout=5)


@pytest.fixture
async def careful(proxy: Proxy) -> Proxy:
    proxy.tools.add("delete", returns("gone"), approval=True)
    await proxy.open()
    return proxy


async def test_a_call_that_needs_approval_runs_when_it_has_it(careful: Proxy) -> None:
    told = asyncio.ensure_future(responses(careful, call("delete")))
    record = await waiting(careful)
    assert record.loop_id == careful.runner.loop_id
    assert careful.tools.begun == []
    await careful.store.decide(record.call_id, True)
    assert await told == [{"result": "gone"}]


async def test_a_denial_is_told_with_its_reason(careful: Proxy) -> None:
    told = asyncio.ensure_future(responses(careful, call("delete")))
    denied = await careful.store.decide((await waiting(careful)).call_id, False, reason="not on Fridays")
    assert await told == [{"error": denied.error}]
    assert denied.error is not None
    assert "not on Fridays" in denied.error
    assert careful.tools.begun == []


async def test_a_call_that_nobody_approves_is_denied_in_the_end(careful: Proxy) -> None:
    await careful.policy(approval_timeout=0.01)
    assert await responses(careful, call("delete")) == [{"error": "nobody approved this call within 0.01 s"}]
    (record,) = await careful.calls()
    assert record.status is Status.DENIED
    assert careful.tools.begun == []


async def test_an_answer_by_hand_ends_the_wait_for_an_approval(careful: Proxy) -> None:
    told = asyncio.ensure_future(responses(careful, call("delete")))
    await careful.store.answer((await waiting(careful)).call_id, result="by hand")
    assert await told == [{"result": "by hand"}]
    assert careful.tools.begun == []


async def test_a_call_is_no_worker_s_while_it_waits_for_its_turn_and_an_approval(proxy: Proxy) -> None:
    go_on = asyncio.Event()

    async def first() -> str:
        await go_on.wait()
        return "first"

    proxy.tools.add("first", first)
    proxy.tools.add("delete", returns("gone"), approval=True, after=("first",))
    await proxy.open()
    told = asyncio.ensure_future(responses(proxy, call("first"), call("delete")))
    record = await waiting(proxy)
    assert await proxy.store.claim("default", ["delete"], lease=10, worker="w") is None
    await proxy.store.decide(record.call_id, True)
    assert proxy.tools.begun == ["first"]
    go_on.set()
    assert await told == [{"result": "first"}, {"result": "gone"}]


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
    told = asyncio.ensure_future(responses(proxy, call("delete"), call("tool")))
    record = await waiting(proxy)
    await until(lambda: proxy.tools.ended == ["tool"])
    assert proxy.executors.seconds_left(record.call_id) is None, "it is not being run"
    await proxy.store.decide(record.call_id, True)
    assert await told == [{"result": "gone"}, {"result": 1}]


# --- workers and sessions -------------------------------------------------------------------------------------

WORKER = ToolRules(executor=Executor(type="worker"), timeout=5)
REMOTE: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}


async def claimed(proxy: Proxy) -> Call:
    async with asyncio.timeout(5):
        while True:
            seen = await proxy.store.last_event_id()
            record = await proxy.store.claim("default", ["remote"], lease=10, worker="w")
            if record is not None:
                return record
            await proxy.store.wait(after=seen, timeout=5)


async def test_a_worker_s_answer_is_waited_for(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER)
    told = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    await proxy.store.answer((await claimed(proxy)).call_id, result={"from": "the worker"})
    assert await told == [{"from": "the worker"}]


async def test_a_worker_that_never_answers_is_an_error_for_the_model(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER.model_copy(update={"timeout": 0.01}))
    assert await responses(proxy, call("remote", place="Oslo")) == [
        {"error": "no worker answered remote within 0.01 s"}
    ]
    assert [one.status for one in await proxy.calls()] == [Status.FAILED]


async def taken(proxy: Proxy, *, worker: str, lease: float) -> Call:
    """The call, as soon as it is free: there is no event when a lease is out."""
    async with asyncio.timeout(5):
        while True:
            seen = await proxy.store.last_event_id()
            record = await proxy.store.claim("default", ["remote"], lease=lease, worker=worker)
            if record is not None:
                return record
            await proxy.store.wait(after=seen, timeout=0.01)


@pytest.mark.parametrize("lease", [0.15, 0.3])
async def test_a_call_of_a_worker_that_died_is_another_s_with_the_whole_time(proxy: Proxy, lease: float) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER.model_copy(update={"timeout": 0.2}))
    told = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    for worker in ("first", "second"):
        await taken(proxy, worker=worker, lease=lease)
    await proxy.store.answer((await taken(proxy, worker="third", lease=lease)).call_id, result="the third's")
    assert await told == [{"result": "the third's"}]


async def test_workers_that_die_one_after_the_other_keep_nobody_waiting_for_ever(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_TAKEOVER", 0.01)
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER.model_copy(update={"timeout": 0.05}))
    told = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    taking = asyncio.ensure_future(_take_for_ever(proxy))
    assert await told == [{"error": "no worker answered remote within 0.05 s"}]
    taking.cancel()
    await asyncio.wait({taking})


async def _take_for_ever(proxy: Proxy) -> None:
    for number in itertools.count():
        await taken(proxy, worker=str(number), lease=0.02)


async def test_arguments_are_checked_before_a_worker_s_answer_is_waited_for(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER)
    (response,) = await responses(proxy, call("remote", place=1))
    assert "do not fit" in response["error"]


async def test_a_session_s_own_executor_comes_before_a_tool_of_the_proxy_s_of_the_same_name(proxy: Proxy) -> None:
    proxy.tools.add("remote", returns("the proxy's"))
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER)
    told = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    await proxy.store.answer((await claimed(proxy)).call_id, result="the worker's")
    assert await told == [{"result": "the worker's"}]
    assert proxy.tools.begun == []


@pytest.mark.parametrize("rules", [None, ToolRules(), ToolRules(approval=True), ToolRules(retries=2)])
async def test_the_proxy_s_tool_never_runs_for_a_name_that_the_session_declares(
    proxy: Proxy, rules: ToolRules | None
) -> None:
    proxy.tools.add("remote", returns("the proxy's"), approval=True)
    await proxy.open()
    await proxy.declare(REMOTE, **({} if rules is None else {"remote": rules}))
    scope = await proxy.grafter.scope("default")
    assert scope is not None
    assert not proxy.executors.can_run(scope, "remote"), "its result comes by hand"
    await proxy.declare({**REMOTE, "name": "another"})
    scope = await proxy.grafter.scope("default")
    assert scope is not None
    assert proxy.executors.can_run(scope, "remote")


async def test_closing_ends_what_still_runs(proxy: Proxy) -> None:
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    told = asking(proxy, call("hangs"))
    await until(lambda: proxy.tools.begun == ["hangs"])
    await proxy.executors.close()
    assert proxy.tools.cancelled == ["hangs"]
    told.cancel()
    await asyncio.wait({told})


@pytest.mark.parametrize(("times", "warned"), [(2, False), (100, True)])
async def test_a_tool_that_swallows_its_cancellation_is_named_and_not_waited_for(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int, warned: bool
) -> None:
    monkeypatch.setattr(executors, "_GRACE", 0.1)
    left, over = times, asyncio.Event()

    async def stubborn() -> None:
        nonlocal left
        while left and not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                left -= 1

    proxy.tools.add("stubborn", stubborn)
    await proxy.open()
    told = asking(proxy, call("stubborn"))
    await until(lambda: proxy.tools.begun == ["stubborn"])
    async with asyncio.timeout(2):
        await proxy.executors.close()
    assert ("not waited for: stubborn" in caplog.text) is warned
    over.set()
    await until(lambda: proxy.tools.ended == ["stubborn"])
    told.cancel()
    await asyncio.wait({told})
