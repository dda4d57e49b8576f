"""Which executor runs a call, and the end of running calls."""

import asyncio

import pytest

from addon.core.framing.documents import Document
from addon.tools import attempts
from store.models import Call, Executor, ToolRules
from tests.loop.calling import PLACE, asking, hangs, responses, returns
from tests.loop.conftest import Proxy, call, until

WORKER = ToolRules(executor=Executor(type="worker"), timeout=5)
REMOTE: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}


async def claimed(proxy: Proxy) -> Call:
    async with asyncio.timeout(5):
        while True:
            last_event = await proxy.store.last_event_id()
            record = await proxy.store.claim("default", ["remote"], lease=10, worker="w")
            if record is not None:
                return record
            await proxy.store.follow("default", last_event, 5)


async def test_a_session_s_own_executor_comes_before_a_tool_of_the_proxy_s_of_the_same_name(proxy: Proxy) -> None:
    proxy.tools.add("remote", returns("the proxy's"))
    await proxy.open()
    await proxy.declare(REMOTE, remote=WORKER)
    answers = asyncio.ensure_future(responses(proxy, call("remote", place="Oslo")))
    await proxy.store.answer("default", (await claimed(proxy)).call_id, result="the worker's")
    assert await answers == [{"result": "the worker's"}]
    assert proxy.tools.begun == []


@pytest.mark.parametrize("rules", [None, ToolRules(), ToolRules(approval=True), ToolRules(retries=2)])
async def test_the_proxy_s_tool_never_runs_for_a_name_that_the_session_declares(
    proxy: Proxy, rules: ToolRules | None
) -> None:
    proxy.tools.add("remote", returns("the proxy's"), approval=True)
    await proxy.open()
    await proxy.declare(REMOTE, **({} if rules is None else {"remote": rules}))
    config = await proxy.grafter.session_config("default")
    assert config is not None
    assert not proxy.executors.can_run(config, "remote"), "its result comes by hand"
    await proxy.declare({**REMOTE, "name": "another"})
    config = await proxy.grafter.session_config("default")
    assert config is not None
    assert proxy.executors.can_run(config, "remote")


async def test_calls_may_begin_as_soon_as_their_task_is_made(proxy: Proxy) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # as mitmproxy does
    proxy.tools.add("first", returns(1))
    proxy.tools.add("second", returns(2), after=("first",), idempotent=True)
    await proxy.open()
    assert await responses(proxy, call("second"), call("first")) == [{"result": 2}, {"result": 1}]
    assert proxy.tools.begun == ["first", "second"]


async def test_closing_ends_what_still_runs(proxy: Proxy) -> None:
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    answers = asking(proxy, call("hangs"))
    await until(lambda: proxy.tools.begun == ["hangs"])
    await proxy.executors.close()
    assert proxy.tools.cancelled == ["hangs"]
    answers.cancel()
    await asyncio.wait({answers})


@pytest.mark.parametrize(("times", "warned"), [(2, False), (100, True)])
async def test_a_tool_that_swallows_its_cancellation_is_named_and_not_waited_for(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int, warned: bool
) -> None:
    monkeypatch.setattr(attempts, "GRACE", 0.1)
    remaining, over = times, asyncio.Event()

    async def stubborn() -> None:
        nonlocal remaining
        while remaining and not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                remaining -= 1

    proxy.tools.add("stubborn", stubborn)
    await proxy.open()
    answers = asking(proxy, call("stubborn"))
    await until(lambda: proxy.tools.begun == ["stubborn"])
    async with asyncio.timeout(2):
        await proxy.executors.close()
    assert ("a call of stubborn ignores its cancellation and is abandoned" in caplog.text) is warned
    over.set()
    await until(lambda: proxy.tools.ended == ["stubborn"])
    answers.cancel()
    await asyncio.wait({answers})


async def test_the_proxy_s_own_tools_have_an_origin(proxy: Proxy) -> None:
    proxy.tools.add("tool", returns(1), timeout=5.0, after=("other",))
    proxy.tools.add("other", returns(1))
    assert proxy.executors.origin("tool") is None, "not open yet"
    await proxy.open()
    source = "the test's tools"
    assert proxy.executors.origin("tool") == {"source": source, "rules": {"timeout": 5.0, "after": ["other"]}}
    assert proxy.executors.origin("other") == {"source": source, "rules": {}}
    assert proxy.executors.origin("none") is None
