"""A repeated request continues the calls of the answer that broke off, and none runs twice for it."""

import asyncio
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.loop import call_run
from addon.loop.runner import Head
from addon.surfaces.incoming import Framing
from addon.tools import Image
from store.base import StoreUnavailable
from store.models import Call, Executor, Status, ToolRules
from tests.contents import model, user
from tests.loop.calling import PLACE
from tests.loop.conftest import Item, Proxy, Scripted, Watched, call, google_error, says, until
from tests.loop.retrying import ANSWER, STEP, hang_up, responses

# --- calls of the last step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_call_that_still_runs_is_waited_for(proxy: Proxy, framing: Framing) -> None:
    free = asyncio.Event()

    async def send() -> str:
        await free.wait()
        return "sent"

    proxy.tools.add("send", send)
    await proxy.open()
    upstream = proxy.upstream(Scripted(STEP, ANSWER))
    await hang_up(proxy, framing, when=lambda _: proxy.tools.begun == ["send"])
    retry = asyncio.ensure_future(proxy.ask("x", framing=framing))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not retry.done()
    free.set()
    (await retry).check()
    assert (await retry).text == "Wait. done"
    assert responses(upstream.bodies[-1]) == [{"result": "sent"}]
    assert proxy.tools.begun == ["send"]


async def test_a_stream_is_kept_alive_while_a_call_of_the_answer_before_is_waited_for() -> None:
    free = asyncio.Event()

    async def send() -> str:
        await free.wait()
        return "sent"

    proxy = Proxy(keepalive=0.01)
    proxy.tools.add("send", send)
    await proxy.open()
    proxy.upstream(Scripted(STEP, ANSWER))
    await hang_up(proxy, Framing.SSE, when=lambda _: proxy.tools.begun == ["send"])
    runner, played = await proxy.prepare([user("x")], Framing.SSE)
    count = 0
    async with asyncio.timeout(5):
        async for out in runner.output():
            played.take(out)
            count += not isinstance(out, Head)
            if count == 4:
                free.set()
    played.check()
    assert played.text == "Wait. done"
    await proxy.close()


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_call_that_may_run_twice_or_has_not_begun_runs_anew(proxy: Proxy, framing: Framing) -> None:
    free = asyncio.Event()

    async def look() -> str:
        await free.wait()
        return "seen"

    async def send() -> str:
        return "sent"

    proxy.tools.add("look", look, idempotent=True)
    proxy.tools.add("send", send, after=("look",))
    await proxy.open()
    step = [says(call("look", "c1"), call("send", "c2"), finish="STOP")]
    upstream = proxy.upstream(Scripted(step, ANSWER, ANSWER))
    await hang_up(proxy, framing, when=lambda _: proxy.tools.begun == ["look"])
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED] * 2
    free.set()
    (await proxy.ask("x", framing=framing)).check()
    assert proxy.tools.begun == ["look", "look", "send"]
    assert responses(upstream.bodies[-1]) == [{"result": "seen"}, {"result": "sent"}]
    await proxy.ask("x", model("done"), user("y"), framing=framing)
    assert responses(upstream.bodies[-1]) == [{"result": "seen"}, {"result": "sent"}], "the ledger names the new ones"


async def test_a_call_that_the_model_waits_for_and_whose_proxy_died_is_told_to_have_run_perhaps(proxy: Proxy) -> None:
    proxy.tools.add("send", asyncio.Event().wait)
    await proxy.open()
    upstream = proxy.upstream(Scripted(STEP, ANSWER))
    asking = asyncio.ensure_future(proxy.ask("x"))
    await until(lambda: proxy.tools.begun == ["send"])
    await until_running(proxy)
    await proxy.store.drop("this")
    after = Proxy(store=proxy.store)
    after.executors.proxy_id = "after"
    await after.store.hold("after", 60)
    after.tools.functions = proxy.tools.functions
    await after.executors.open()
    after.grafter.session_configs.share([tool.declaration for tool in after.executors.tools.values()])
    after.transport = proxy.transport
    assert (await after.ask("x")).text == "Wait. done"
    (response,) = responses(upstream.bodies[-1])
    assert "may have run" in response["error"]
    assert after.tools.begun == []
    asking.cancel()
    await asyncio.wait({asking})
    await after.close()


async def until_running(proxy: Proxy) -> None:
    async with asyncio.timeout(5):
        while [one.status for one in await proxy.calls()] != [Status.RUNNING]:  # noqa: ASYNC110 - in this process
            await asyncio.sleep(0)


async def hang_up_once_claimed(proxy: Proxy) -> Call:
    """The client hangs up as soon as a worker has claimed the call of `remote`."""

    async def claim() -> Call:
        await proxy.store.wait_claimable("default", ["remote"], 5)
        found = await proxy.store.claim("default", ["remote"], lease=60, worker="w")
        assert found is not None
        return found

    claiming = asyncio.ensure_future(claim())
    await hang_up(proxy, Framing.SSE, when=lambda _: claiming.done())
    return await claiming


async def test_a_call_that_a_worker_has_is_waited_for(proxy: Proxy) -> None:
    await proxy.open()
    remote: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}
    await proxy.declare(remote, remote=ToolRules(executor=Executor(type="worker")))
    upstream = proxy.upstream(Scripted([says(call("remote", place="Oslo"), finish="STOP")], ANSWER))
    claimed = await hang_up_once_claimed(proxy)
    retry = asyncio.ensure_future(proxy.ask("x", framing=Framing.SSE))
    for _ in range(20):
        await asyncio.sleep(0)
    assert await proxy.store.claim("default", ["remote"], lease=60, worker="other") is None
    await proxy.store.answer("default", claimed.call_id, result="from the worker")
    assert (await retry).text == "done"
    assert responses(upstream.bodies[-1]) == [{"result": "from the worker"}]


async def test_a_worker_that_never_answers_is_waited_for_as_long_as_the_tool_may_take(proxy: Proxy) -> None:
    await proxy.open()
    remote: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}
    worker = Executor(type="worker")
    await proxy.declare(remote, remote=ToolRules(executor=worker))
    upstream = proxy.upstream(Scripted([says(call("remote", place="Oslo"), finish="STOP")], ANSWER))
    await hang_up_once_claimed(proxy)
    for task in list(proxy.executors._tasks):  # as if another process had begun the call
        task.cancel()
    await until(lambda: not proxy.executors._tasks)
    await proxy.declare(remote, remote=ToolRules(executor=worker, timeout=0.05))
    assert (await proxy.ask("x", framing=Framing.SSE)).text == "done"
    (response,) = responses(upstream.bodies[-1])
    assert response == {"error": "no worker answered remote within 0.05 s; the call may have run"}


# --- a step that is not complete -------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize(("args", "begun"), [({"to": 1}, 1), ({"to": 1.0}, 2)])
async def test_an_identical_call_of_a_step_that_broke_off_is_not_run_again(
    proxy: Proxy, framing: Framing, args: dict[str, Any], begun: int
) -> None:
    async def send(to: Any) -> str:
        return f"sent {len(proxy.tools.begun)}"

    proxy.tools.add("send", send)
    await proxy.open()
    broken: list[Item] = [says("Wait. ", call("send", "c1", to=1)), asyncio.Event()]
    upstream = proxy.upstream(Scripted(broken, [says(call("send", "c9", **args), finish="STOP")], ANSWER))
    await hang_up(proxy, framing, when=lambda _: proxy.tools.ended == ["send"])
    await until(lambda: not proxy.executors._tasks)
    (await proxy.ask("x", framing=framing)).check()
    assert responses(upstream.bodies[-1]) == [{"result": f"sent {begun}"}]
    assert len(proxy.tools.begun) == begun
    assert len(await proxy.turns()) == 1


async def test_each_call_of_a_step_that_broke_off_stands_for_one(proxy: Proxy) -> None:
    async def send(to: Any) -> str:
        return f"sent {len(proxy.tools.begun)}"

    proxy.tools.add("send", send)
    await proxy.open()
    twice = [call("send", to=1), call("send", to=1)]
    broken: list[Item] = [says(call("send", to=1)), asyncio.Event()]
    upstream = proxy.upstream(Scripted(broken, [says(*twice, finish="STOP")], ANSWER))
    await hang_up(proxy, Framing.SSE, when=lambda _: proxy.tools.ended == ["send"])
    await until(lambda: not proxy.executors._tasks)
    await proxy.ask("x", framing=Framing.SSE)
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}, {"result": "sent 2"}]


async def test_an_answer_without_calls_ends_what_was_taken_over(sender: Proxy) -> None:
    broken: list[Item] = [says(call("send")), asyncio.Event()]
    sender.upstream(Scripted(broken, ANSWER, STEP, ANSWER))
    await hang_up(sender, Framing.SSE, when=lambda _: sender.tools.ended == ["send"])
    assert (await sender.ask("x", framing=Framing.SSE)).text == "done"
    await sender.ask("x", framing=Framing.SSE)
    assert sender.tools.begun == ["send"] * 2, "what was delivered is not taken over"


async def test_a_call_that_ran_before_keeps_its_images(proxy: Proxy) -> None:
    free = asyncio.Event()

    async def look() -> Image:
        return Image(b"\x89PNG\r\n")

    async def send() -> str:
        await free.wait()
        return "sent"

    proxy.tools.add("look", look)
    proxy.tools.add("send", send)
    await proxy.open()
    step = [says(call("look", "c1"), call("send", "c2"), finish="STOP")]
    upstream = proxy.upstream(Scripted(step, ANSWER))
    await hang_up(proxy, Framing.SSE, when=lambda _: proxy.tools.ended == ["look"] and "send" in proxy.tools.begun)
    free.set()
    (await proxy.ask("x", framing=Framing.SSE)).check()
    assert proxy.tools.begun == ["look", "send"]
    look_response = upstream.bodies[-1]["contents"][-1]["parts"][0]["functionResponse"]
    assert look_response["response"] == {"result": "[part 1: image/png]"}
    assert look_response["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0K"}}]


async def test_a_call_that_was_answered_by_hand_is_not_asked_for_again(proxy: Proxy) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    broken: list[Item] = [says("Wait. ", call("manual", "c1")), asyncio.Event()]
    whole = [says(call("manual", "c9"), finish="STOP")]
    upstream = proxy.upstream(Scripted(broken, whole, ANSWER))
    runner, _ = await proxy.prepare([user("x")], Framing.SSE)
    output = runner.output()

    async def read() -> None:
        async for _ in output:
            pass

    reading = asyncio.ensure_future(read())
    async with asyncio.timeout(5):
        while not (calls := await proxy.calls()):  # noqa: ASYNC110 - in this process
            await asyncio.sleep(0)
    await proxy.store.answer("default", calls[0].call_id, result={"by": "hand"})
    reading.cancel()
    await asyncio.wait({reading})
    await output.aclose()
    visible_text = (await proxy.ask("x", framing=Framing.SSE)).text
    assert [one.call_id for one in await proxy.calls()] == [calls[0].call_id]
    await proxy.ask("x", model(visible_text), user("y"), framing=Framing.SSE)
    assert responses(upstream.bodies[-1]) == [{"by": "hand"}]


@pytest.mark.parametrize("ends", ["hangs up", "error"])
async def test_an_addon_that_is_slow_to_hear_of_the_end_holds_up_no_retry(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    free, ended = asyncio.Event(), Watched.close

    async def slow(watched: Watched, error: str | None) -> None:
        await free.wait()
        await ended(watched, error)

    monkeypatch.setattr(Watched, "close", slow)
    fails = asyncio.Event()
    broken: list[Item] = [says("Wait. ", call("send", "c1")), fails, google_error(500)]
    sender.upstream(Scripted(broken, STEP, ANSWER))
    runner, played = await sender.prepare([user("x")], Framing.SSE)

    async def read() -> None:
        async for out in runner.output():
            played.take(out)

    reading = asyncio.ensure_future(read())
    await until(lambda: sender.tools.ended == ["send"])
    if ends == "hangs up":
        reading.cancel()
        await until_left(sender)
    else:
        fails.set()
        await until(lambda: b"error" in played.body)
    assert not reading.done()
    monkeypatch.setattr(Watched, "close", ended)
    assert (await sender.ask("x", framing=Framing.SSE)).text == "Wait. done"
    assert sender.tools.begun == ["send"]
    free.set()
    await asyncio.wait({reading})


async def until_left(proxy: Proxy) -> None:
    async with asyncio.timeout(5):
        while not [turn for turn in await proxy.turns() if turn.broke_off is not None]:  # noqa: ASYNC110 - here as well
            await asyncio.sleep(0)


async def test_the_result_of_a_call_that_ran_before_is_asked_for_until_the_store_works(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is told the result that later requests have, and not that the store failed."""
    upstream = sender.upstream(Scripted(STEP, httpx2.Response(400, content=encode(google_error(400))), ANSWER))
    await sender.ask("x")
    read, refused = sender.store.call, list[str]()

    async def refuse_twice(session: str, call_id: str) -> Any:
        if len(refused) < 2:
            refused.append(call_id)
            raise StoreUnavailable("no answer")
        return await read(session, call_id)

    monkeypatch.setattr(call_run, "_STORE_PAUSE", 0.001)
    monkeypatch.setattr(sender.store, "call", refuse_twice)
    assert (await sender.ask("x")).text == "Wait. done"
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}]
    assert (len(refused), sender.tools.begun) == (2, ["send"])
