"""Runs shared by identical calls, and cached results."""

import asyncio
from typing import Any

import pytest

from addon.loop import shared_runs
from addon.loop.executors import Executors
from addon.tools.base import ToolError
from store.models import Status, Toolset
from tests.loop.calling import raises, responses, returns
from tests.loop.conftest import Proxy, call, until


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("3")])
async def test_a_run_that_is_shared_ends_no_event_loop(proxy: Proxy, error: BaseException) -> None:
    proxy.tools.add("tool", raises(error), idempotent=True)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"error": f"{type(error).__name__}: 3"}]


async def test_identical_calls_in_flight_run_once_where_that_is_allowed(proxy: Proxy) -> None:
    free = asyncio.Event()

    async def wait(**args: Any) -> Any:
        await free.wait()
        return args

    proxy.tools.add("once", wait, idempotent=True)
    proxy.tools.add("each", wait)
    await proxy.open()
    step = [call("once", a=1), call("once", a=1), call("once", a=2), call("each", a=1), call("each", a=1)]
    answers = asyncio.ensure_future(responses(proxy, *step))
    await until(lambda: len(proxy.tools.begun) == 4)
    free.set()
    assert await answers == [{"a": 1}, {"a": 1}, {"a": 2}, {"a": 1}, {"a": 1}]
    assert proxy.tools.begun.count("once") == 2
    await responses(proxy, call("once", a=1))
    assert proxy.tools.begun.count("once") == 3, "only those in flight are shared"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (2**53, 2**53 + 1),
        (2**64, 2**64 + 1),
        (-(2**70), -(2**70) - 1),
        (1, 1.0),
        (1, True),
        (0, False),
        (0, None),
        ("1", 1),
        ([1], [1.0]),
        ({"a": 1}, {"a": 1.0}),
    ],
)
@pytest.mark.parametrize("rules", [{"cache_ttl": 1000.0}, {"idempotent": True}], ids=["kept", "in flight"])
async def test_arguments_are_compared_exactly(proxy: Proxy, rules: dict[str, Any], first: Any, second: Any) -> None:
    given: list[Any] = []
    both = asyncio.Event()

    async def tool(n: Any) -> int:
        given.append(n)
        if len(given) == 2 or "cache_ttl" in rules:
            both.set()
        await both.wait()
        return len(given)

    proxy.tools.add("tool", tool, **rules)
    await proxy.open()
    if "cache_ttl" in rules:
        for n in (first, second):
            await responses(proxy, call("tool", n=n))
    else:
        await responses(proxy, call("tool", n=first), call("tool", n=second))
    assert list(map(repr, given)) == [repr(first), repr(second)]


async def test_the_order_of_arguments_does_not_matter(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns(1), cache_ttl=1000)
    await proxy.open()
    await responses(proxy, call("tool", a=1, b={"c": 2, "d": 3}))
    await responses(proxy, call("tool", b={"d": 3, "c": 2}, a=1))
    assert proxy.tools.begun == ["tool"]


@pytest.mark.parametrize("change", ["replaced", "set again", "deleted"])
async def test_cached_results_are_dropped_with_their_tools(proxy: Proxy, change: str) -> None:
    proxy.tools.add("kept", returns(1), cache_ttl=1000)
    await proxy.open()
    other = {"name": "other", "description": "d"}
    await proxy.store.put_toolset("default", Toolset(declarations=[other]))
    for _ in range(2):
        await responses(proxy, call("kept"))
    assert proxy.tools.begun == ["kept"]
    if change == "deleted":
        await proxy.store.delete_session("default")
    else:
        changed = other if change == "set again" else {"name": "another", "description": "d"}
        await proxy.store.put_toolset("default", Toolset(declarations=[changed]))
    await responses(proxy, call("kept"))
    assert proxy.tools.begun == ["kept", "kept"]


async def test_cached_results_are_dropped_with_a_session_without_settings(proxy: Proxy) -> None:
    proxy.tools.add("kept", returns(1), cache_ttl=1000)
    await proxy.open()
    for runs in (1, 2):
        for _ in range(2):
            await responses(proxy, call("kept"))
        assert proxy.tools.begun == ["kept"] * runs
        assert await proxy.store.delete_session("default")


async def test_a_run_under_an_old_declaration_is_not_shared_with_new_calls(proxy: Proxy) -> None:
    free = asyncio.Event()

    async def slow() -> int:
        await free.wait()
        return len(proxy.tools.begun)

    proxy.tools.add("slow", slow, idempotent=True, cache_ttl=1000.0)
    await proxy.open()
    first = asyncio.ensure_future(responses(proxy, call("slow")))
    await until(lambda: len(proxy.tools.begun) == 1)
    proxy.tools.add("slow", slow, schema={"type": "object", "title": "another"}, idempotent=True, cache_ttl=1000.0)
    await proxy.executors.open()
    second = asyncio.ensure_future(responses(proxy, call("slow")))
    await until(lambda: len(proxy.tools.begun) == 2)
    free.set()
    await asyncio.gather(first, second)


async def test_the_result_of_a_run_under_an_old_record_is_not_kept(proxy: Proxy) -> None:
    free = asyncio.Event()

    async def slow() -> int:
        await free.wait()
        return 1

    proxy.tools.add("slow", slow, cache_ttl=1000.0)
    await proxy.open()
    first = asyncio.ensure_future(responses(proxy, call("slow")))
    await until(lambda: len(proxy.tools.begun) == 1)
    await proxy.store.put_toolset("default", None)
    second = asyncio.ensure_future(responses(proxy, call("slow")))
    await until(lambda: len(proxy.tools.begun) == 2)
    free.set()
    await asyncio.gather(first, second)
    await responses(proxy, call("slow"))
    assert len(proxy.tools.begun) == 2, "the result of the new one is kept"


async def test_results_are_kept_for_as_long_as_the_rules_say(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("addon.loop.shared_runs.time.monotonic", lambda: now[0])
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


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(shared_runs, "MAX_CACHE", 8 * 1024 * 1024)
    return shared_runs.MAX_CACHE


async def test_the_cache_of_results_is_bounded(small_cache: int, proxy: Proxy) -> None:
    proxy.tools.add("kept", returns("x" * 1_000_000), cache_ttl=1000)
    await proxy.open()
    for n in range(10):
        await responses(proxy, call("kept", n=n))
    assert 0.8 * small_cache < proxy.executors._shared._cache.currsize <= small_cache
