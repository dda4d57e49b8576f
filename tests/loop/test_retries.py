"""A repeated request continues the answer that broke off, and no tool runs twice for it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.loop.runner import Head, Runner
from addon.surfaces.base import Framing
from store.models import Call, Executor, Status, ToolRules
from tests.contents import model, user
from tests.loop.calling import PLACE
from tests.loop.conftest import Item, Played, Proxy, Scripted, Watched, call, google_error, says, streamed, until

STEP = [says("Wait. ", call("send", "c1"), finish="STOP", responseId="r1", usageMetadata={"promptTokenCount": 10})]
ANSWER = [says("done", finish="STOP", responseId="r2", usageMetadata={"promptTokenCount": 20})]
BROKEN = httpx2.Response(400, content=encode(google_error(400)))


@pytest.fixture
async def sender(proxy: Proxy) -> Proxy:
    async def send() -> str:
        return f"sent {proxy.tools.begun.count('send')}"

    proxy.tools.add("send", send)
    await proxy.open()
    return proxy


async def hang_up(proxy: Proxy, framing: Framing, *, when: Any) -> Played:
    """A client that asks, and hangs up as soon as `when` holds."""
    runner, played = await proxy.prepare([user("x")], framing)
    output = runner.output()

    async def read() -> None:
        async for out in output:
            played.take(out)

    reading = asyncio.ensure_future(read())
    await until(lambda: when(played))
    reading.cancel()
    await asyncio.wait({reading})
    await output.aclose()
    return played


def responses(body: Document) -> list[Document]:
    parts = [part for content in body["contents"] for part in content["parts"]]
    return [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]


# --- rounds that are complete ---------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("surface", ["developer", "codeassist"])
async def test_a_round_that_failed_is_asked_for_again_and_finished_tools_are_not_run_again(
    sender: Proxy, framing: Framing, surface: str
) -> None:
    def wrapped(items: Sequence[Document]) -> Any:
        return [{"response": one} for one in items] if surface == "codeassist" else items

    upstream = sender.upstream(Scripted(wrapped(STEP), BROKEN, wrapped(ANSWER)))
    first = await sender.ask("x", framing=framing, surface=surface)
    assert first.documents[-1] == google_error(400)
    retry = await sender.ask("x", framing=framing, surface=surface)
    retry.check()
    assert retry.text == "Wait. done", "what was shown before is shown again"
    assert sender.tools.begun == ["send"]
    assert upstream.bodies[1] == upstream.bodies[2]
    (turn,) = await sender.turns()
    assert turn.delivered
    assert [one["promptTokenCount"] for one in turn.usage] == [10, 20]
    assert {one["responseId"] for one in retry.documents if "responseId" in one} == {"r1"}


async def test_the_next_turn_carries_what_was_taken_over(sender: Proxy) -> None:
    upstream = sender.upstream(Scripted(STEP, BROKEN, ANSWER, ANSWER))
    await sender.ask("x")
    await sender.ask("x")
    await sender.ask("x", model("Wait. done"), user("y"))
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}]


async def test_an_answer_can_break_off_again_and_be_taken_over_again(sender: Proxy) -> None:
    second = [says("More. ", call("send", "c2"), finish="STOP")]
    upstream = sender.upstream(Scripted(STEP, BROKEN, second, BROKEN, ANSWER))
    for _ in range(2):
        await sender.ask("x", framing=Framing.SSE)
    assert (await sender.ask("x", framing=Framing.SSE)).text == "Wait. More. done"
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}, {"result": "sent 2"}]
    assert len(await sender.turns()) == 1


async def test_rounds_are_counted_on(sender: Proxy) -> None:
    await sender.policy(max_rounds=2)
    upstream = sender.upstream(Scripted(STEP, BROKEN, ANSWER))
    await sender.ask("x")
    assert (await sender.ask("x")).text == "Wait. done"
    assert upstream.bodies[-1]["toolConfig"]["functionCallingConfig"]["mode"] == "NONE"


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
async def test_a_client_that_hung_up_in_a_later_round_gets_all_of_it(sender: Proxy, framing: Framing) -> None:
    upstream = sender.upstream(Scripted(STEP, [says("half"), asyncio.Event()], ANSWER))
    gone = await hang_up(sender, framing, when=lambda played: b"half" in played.body)
    assert gone.status == 200
    retry = await sender.ask("x", framing=framing)
    retry.check()
    assert retry.text == "Wait. done"
    assert sender.tools.begun == ["send"]
    assert upstream.bodies[1] == upstream.bodies[2]


# --- calls of the last step -----------------------------------------------------------------------------------


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
    after.client = proxy.client
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


async def test_a_call_that_a_worker_has_is_waited_for(proxy: Proxy) -> None:
    await proxy.open()
    remote: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}
    await proxy.declare(remote, remote=ToolRules(executor=Executor(type="worker")))
    upstream = proxy.upstream(Scripted([says(call("remote", place="Oslo"), finish="STOP")], ANSWER))
    claimed_calls: list[Call] = []

    async def claim() -> None:
        await proxy.store.wait_claimable("default", ["remote"], 5)
        found = await proxy.store.claim("default", ["remote"], lease=60, worker="w")
        assert found is not None
        claimed_calls.append(found)

    claiming = asyncio.ensure_future(claim())
    await hang_up(proxy, Framing.SSE, when=lambda _: bool(claimed_calls))
    await claiming
    retry = asyncio.ensure_future(proxy.ask("x", framing=Framing.SSE))
    for _ in range(20):
        await asyncio.sleep(0)
    assert await proxy.store.claim("default", ["remote"], lease=60, worker="other") is None
    await proxy.store.answer("default", claimed_calls[0].call_id, result="from the worker")
    assert (await retry).text == "done"
    assert responses(upstream.bodies[-1]) == [{"result": "from the worker"}]


async def test_a_worker_that_never_answers_is_waited_for_as_long_as_the_tool_may_take(proxy: Proxy) -> None:
    await proxy.open()
    remote: Document = {"name": "remote", "description": "d", "parametersJsonSchema": PLACE}
    worker = Executor(type="worker")
    await proxy.declare(remote, remote=ToolRules(executor=worker))
    upstream = proxy.upstream(Scripted([says(call("remote", place="Oslo"), finish="STOP")], ANSWER))
    claimed_calls: list[Call] = []

    async def claim() -> None:
        await proxy.store.wait_claimable("default", ["remote"], 5)
        found = await proxy.store.claim("default", ["remote"], lease=60, worker="w")
        assert found is not None
        claimed_calls.append(found)

    claiming = asyncio.ensure_future(claim())
    await hang_up(proxy, Framing.SSE, when=lambda _: bool(claimed_calls))
    await claiming
    for task in list(proxy.executors._tasks):  # as if another process had begun the call
        task.cancel()
    await until(lambda: not proxy.executors._tasks)
    await proxy.declare(remote, remote=ToolRules(executor=worker, timeout=0.05))
    assert (await proxy.ask("x", framing=Framing.SSE)).text == "done"
    (response,) = responses(upstream.bodies[-1])
    assert response == {"error": "no worker answered remote within 0.05 s; the call may have run"}


# --- a step that is not complete ------------------------------------------------------------------------------


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


# --- answers that are complete, and lost on their way ---------------------------------------------------------


async def unread(proxy: Proxy, framing: Framing) -> Runner:
    """An answer that is made to its end; whether its client has it is not known."""
    runner, _ = await proxy.prepare([user("x")], framing)
    async for _ in runner.output():
        pass
    return runner


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("dies", [False, True], ids=["connection", "proxy"])
async def test_the_last_round_of_an_undelivered_complete_answer_is_requested_again(
    sender: Proxy, framing: Framing, dies: bool
) -> None:
    upstream = sender.upstream(Scripted(STEP, ANSWER, ANSWER, STEP, ANSWER))
    runner = await unread(sender, framing)
    if dies:
        await sender.store.drop("this")
        sender.executors.proxy_id = "the next"
        await sender.store.hold("the next", 3600)
    else:
        await runner.settle_handover(False)
    retry = await sender.ask("x", framing=framing)
    retry.check()
    assert retry.text == "Wait. done"
    assert sender.tools.begun == ["send"]
    assert upstream.bodies[1] == upstream.bodies[2]
    assert [turn.delivered for turn in await sender.turns()] == [True]
    await sender.ask("x", framing=framing)
    assert sender.tools.begun == ["send"] * 2, "what the client has is not taken over"


@pytest.mark.parametrize("framing", list(Framing))
async def test_an_answer_on_its_way_is_found_by_the_next_turn_and_not_taken_over(
    sender: Proxy, framing: Framing
) -> None:
    upstream = sender.upstream(Scripted(STEP, ANSWER, ANSWER))
    await unread(sender, framing)
    await sender.ask("x", model("Wait. done"), user("y"))
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}]
    sender.upstream(Scripted(STEP, ANSWER))
    await sender.ask("x")
    assert sender.tools.begun == ["send"] * 2


async def test_a_client_that_hung_up_before_the_end_was_shown_has_not_all_of_it(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.upstream(Scripted(STEP, ANSWER, ANSWER))
    flush, waits = sender.executors.flush, asyncio.Event()

    async def stuck(calls: Sequence[str]) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(sender.executors, "flush", stuck)
    await hang_up(sender, Framing.SSE, when=lambda _: waits.is_set())
    monkeypatch.setattr(sender.executors, "flush", flush)
    assert (await sender.ask("x", framing=Framing.SSE)).text == "Wait. done"
    assert sender.tools.begun == ["send"]


# --- what is no retry -----------------------------------------------------------------------------------------


async def test_a_delivered_answer_is_never_resumed(sender: Proxy) -> None:
    sender.upstream(Scripted(STEP, ANSWER, STEP, ANSWER))
    for _ in range(2):
        assert (await sender.ask("x")).text == "Wait. done"
    assert sender.tools.begun == ["send"] * 2


async def test_another_request_takes_nothing_over(sender: Proxy) -> None:
    sender.upstream(Scripted(STEP, BROKEN, STEP, ANSWER))
    await sender.ask("x")
    await sender.ask("y")
    assert sender.tools.begun == ["send"] * 2


async def test_the_same_words_to_another_model_begin_anew(sender: Proxy) -> None:
    sender.upstream(Scripted(STEP, BROKEN, STEP, ANSWER))
    await sender.ask("x", name="gemini-3-flash-preview")
    assert (await sender.ask("x", name="gemini-3-pro-preview")).text == "Wait. done"
    assert sender.tools.begun == ["send"] * 2
    assert len(await sender.turns()) == 2


async def test_an_answer_is_taken_over_once(sender: Proxy) -> None:
    sender.upstream(Scripted(STEP, BROKEN))
    await sender.ask("x")

    async def answers(request: httpx2.Request) -> httpx2.Response:
        found = (ANSWER if responses(decode(request.content)) else STEP)[0]
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=streamed(encode(found)))

    sender.client = httpx2.AsyncClient(transport=httpx2.MockTransport(answers))
    one, other = await asyncio.gather(sender.ask("x"), sender.ask("x"))
    assert (one.text, other.text) == ("Wait. done", "Wait. done")
    assert sender.tools.begun == ["send"] * 2


@pytest.mark.parametrize("seconds", [0, 30, 61])
async def test_an_answer_that_broke_off_too_long_ago_is_left_alone(seconds: int) -> None:
    async def send() -> str:
        return "sent"

    proxy = Proxy(retry_window=60 if seconds else 0)
    now = [1000.0]
    proxy.store.clock = proxy.store.uptime = lambda: now[0]
    proxy.tools.add("send", send)
    await proxy.open()
    proxy.upstream(Scripted(STEP, BROKEN, *([ANSWER] if seconds == 30 else [STEP, ANSWER])))
    await proxy.ask("x")
    now[0] += seconds
    assert (await proxy.ask("x")).text == "Wait. done"
    assert len(proxy.tools.begun) == (1 if seconds == 30 else 2)
    await proxy.close()
