"""Loops whose client hangs up."""

import asyncio

import pytest

from addon.surfaces.incoming import Framing
from store.models import Status
from tests.contents import user
from tests.loop.conftest import Proxy, Scripted, call, lookup, says, until
from tests.loop.retrying import hang_up

STREAMS = [Framing.SSE, Framing.ARRAY]
ANSWER = [says("done", finish="STOP")]


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_client_that_hangs_up_ends_calls_that_may_run_twice_and_those_that_have_not_begun(
    proxy: Proxy, framing: Framing
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    proxy.tools.add("hang", hang, idempotent=True)
    proxy.tools.add("shared", hang, idempotent=True)
    proxy.tools.add("later", lookup, after=("hang",))
    await proxy.open()
    await proxy.policy(parallel=2)
    calls = [call("hang"), call("shared"), call("shared"), call("later"), call("hang", a=1)]
    step = says(*calls, finish="STOP")
    upstream = proxy.upstream(Scripted([step], ANSWER))
    await hang_up(proxy, framing, when=lambda _: "shared" in proxy.tools.begun)
    assert proxy.tools.cancelled == ["hang", "shared"]
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED] * 5, "also those that had not begun"
    assert len(upstream.bodies) == 1
    assert not (await proxy.turns())[0].delivered


@pytest.mark.parametrize("framing", list(Framing))
async def test_calls_that_must_not_run_twice_come_to_their_end_when_the_client_has_hung_up(
    proxy: Proxy, framing: Framing
) -> None:
    free = asyncio.Event()

    async def send() -> str:
        await free.wait()
        return "sent"

    proxy.tools.add("send", send)
    proxy.tools.add("slow", send, timeout=0.01)
    proxy.tools.add("later", lookup, after=("send",))
    await proxy.open()
    await proxy.policy(parallel=2)
    step = says(call("send"), call("slow"), call("send", redo=True), call("later"), finish="STOP")
    upstream = proxy.upstream(Scripted([step], ANSWER))
    await hang_up(proxy, framing, when=lambda _: "send" in proxy.tools.begun)
    await until(lambda: len(proxy.executors._tasks) == 1)
    statuses = [one.status for one in await proxy.calls()]
    assert statuses == [Status.RUNNING, Status.FAILED, Status.EXPIRED, Status.EXPIRED]
    free.set()
    await until(lambda: not proxy.executors._tasks)
    sent, slow, *_ = await proxy.calls()
    assert (sent.result, slow.error) == ("sent", "slow took longer than 0.01 s")
    assert proxy.tools.begun.count("send") == 1
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize("framing", STREAMS)
async def test_a_client_that_hangs_up_at_an_event_ends_everything_at_once(proxy: Proxy, framing: Framing) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    proxy.tools.add("hang", hang, idempotent=True)
    await proxy.open()
    upstream = proxy.upstream(Scripted([says("Wait.", call("hang")), says("more"), says(finish="STOP")], ANSWER))
    runner, _ = await proxy.prepare([user("x")], framing)
    output = runner.output()
    await anext(output)
    await anext(output)
    await output.aclose()
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED]
    assert proxy.watcher.exchanges[0].error == "the loop ended before the answer did"
    assert len(upstream.bodies) == 1


async def test_a_tool_that_does_not_care_for_being_cancelled_is_not_waited_for(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("addon.loop.executors._GRACE", 0.01)
    free = asyncio.Event()

    async def stubborn() -> str:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    proxy.tools.add("stubborn", stubborn, idempotent=True)
    await proxy.open()
    proxy.upstream(Scripted([says(call("stubborn"), finish="STOP")], ANSWER))
    await hang_up(proxy, Framing.SSE, when=lambda _: "stubborn" in proxy.tools.begun)
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED]
    free.set()
    await until(lambda: proxy.tools.ended == ["stubborn"])


async def test_a_tool_that_others_wait_for_as_well_runs_on(proxy: Proxy) -> None:
    free = asyncio.Event()

    async def shared() -> str:
        await free.wait()
        return "found"

    proxy.tools.add("shared", shared, idempotent=True)
    await proxy.open()
    step = [says(call("shared"), finish="STOP")]
    proxy.upstream(Scripted(step, step, ANSWER))
    asking = asyncio.ensure_future(proxy.ask("x"))
    await until(lambda: proxy.tools.begun == ["shared"])
    gone = asyncio.ensure_future(proxy.ask("y"))
    await until(lambda: len(proxy.executors._tasks) == 2)
    gone.cancel()
    await asyncio.wait({gone})
    free.set()
    assert (await asking).text == "done"
    assert proxy.tools.begun == ["shared"]
    assert proxy.tools.cancelled == []
