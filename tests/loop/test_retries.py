"""A repeated request continues the answer that broke off, and no tool runs twice for it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft import late_writes
from addon.graft.exchange import Reply
from addon.graft.machine_shell import Capture
from addon.loop.runner import Runner
from addon.surfaces.incoming import Framing
from store.base import StoreUnavailable, TakeOverUnknown, Traffic
from store.models import Status
from tests.contents import model, user
from tests.loop.conftest import Proxy, Scripted, call, google_error, says, streamed
from tests.loop.retrying import ANSWER, STEP, hang_up, responses

BROKEN = httpx2.Response(400, content=encode(google_error(400)))


# --- rounds that are complete ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("step", "text"),
    [([], "Wait. done"), ([[says("More. ", call("send", "c2"), finish="STOP")]], "Wait. More. done")],
    ids=["in the same round", "after another step"],
)
async def test_an_answer_can_break_off_again_and_be_taken_over_again(
    sender: Proxy, step: Sequence[Sequence[Document]], text: str
) -> None:
    upstream = sender.upstream(Scripted(STEP, BROKEN, *step, BROKEN, ANSWER))
    for _ in range(2):
        failed = await sender.ask("x", framing=Framing.SSE)
        assert failed.documents[-1] == google_error(400)
    assert (await sender.ask("x", framing=Framing.SSE)).text == text
    assert responses(upstream.bodies[-1]) == [{"result": f"sent {number}"} for number in range(1, 2 + len(step))]
    assert len(await sender.turns()) == 1


async def test_rounds_are_counted_on(sender: Proxy) -> None:
    await sender.policy(max_rounds=2)
    upstream = sender.upstream(Scripted(STEP, BROKEN, ANSWER))
    await sender.ask("x")
    assert (await sender.ask("x")).text == "Wait. done"
    assert upstream.bodies[-1]["toolConfig"]["functionCallingConfig"]["mode"] == "NONE"


async def test_a_retry_starts_anew_if_the_store_has_lost_a_call(sender: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a Redis server fails over before its replica has the call."""
    upstream, take_over = sender.upstream(Scripted(STEP, BROKEN, STEP, ANSWER)), sender.store.take_over
    await sender.ask("x")

    async def without_calls(*args: Any, **options: Any) -> Any:
        found = await take_over(*args, **options)
        assert found is not None
        return found[0], []

    monkeypatch.setattr(sender.store, "take_over", without_calls)
    retry = await sender.ask("x")
    retry.check()
    assert retry.text == "Wait. done"
    assert upstream.bodies[2] == upstream.bodies[0]
    assert responses(upstream.bodies[3]) == [{"result": "sent 2"}]


async def test_a_call_that_gets_an_earlier_call_s_answer_when_its_round_is_continued_is_stored(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt's call is done. The second attempt made it once more, and broke off before it had the answer of
    the first."""
    upstream, take_over = sender.upstream(Scripted(STEP, BROKEN, ANSWER, ANSWER)), sender.store.take_over
    await sender.ask("x")

    async def with_another_call(*args: Any, **options: Any) -> Any:
        found = await take_over(*args, **options)
        assert found is not None
        turn, (done,) = found
        (step,) = turn.steps
        other = {"call_id": "call_2", "status": Status.EXPIRED, "result": None, "error": "cancelled", "loop_id": None}
        slots = [step.slots[0].model_copy(update={"call_id": "call_2"})]
        steps = [step.model_copy(update={"slots": slots})]
        return turn.model_copy(update={"steps": steps}), [done, done.model_copy(update=other)]

    with monkeypatch.context() as patch:
        patch.setattr(sender.store, "take_over", with_another_call)
        assert (await sender.ask("x")).text == "Wait. done"
    assert sender.tools.begun == ["send"]
    await sender.ask("x", model("Wait. done"), user("y"))
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}]


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


# --- answers that are complete, and lost on their way ----------------------------------------------------------


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
    late_writes, waits = sender.executors.late_writes, asyncio.Event()
    flush = late_writes.flush

    async def stuck(calls: Sequence[str]) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(late_writes, "flush", stuck)
    await hang_up(sender, Framing.SSE, when=lambda _: waits.is_set())
    monkeypatch.setattr(late_writes, "flush", flush)
    assert (await sender.ask("x", framing=Framing.SSE)).text == "Wait. done"
    assert sender.tools.begun == ["send"]


# --- what is no retry ------------------------------------------------------------------------------------------


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

    sender.transport = httpx2.MockTransport(answers)
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


@pytest.mark.parametrize("framing", list(Framing))
async def test_an_answer_that_broke_off_while_the_store_failed_is_taken_over_once_it_works(
    sender: Proxy, framing: Framing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the answer could not be noted. The retry begins with that: its tools do not run again."""
    mark, refused = sender.store.mark_broken_off, list[str]()

    async def refuse_once(session: str, turn_id: str, **named: Any) -> bool:
        if not refused:
            refused.append(turn_id)
            raise StoreUnavailable("full")
        return await mark(session, turn_id, **named)

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 3600)
    monkeypatch.setattr(sender.store, "mark_broken_off", refuse_once)
    sender.upstream(Scripted(STEP, BROKEN, ANSWER))
    await sender.ask("x", framing=framing)
    assert refused
    retry = await sender.ask("x", framing=framing)
    assert retry.text == "Wait. done"
    assert sender.tools.begun == ["send"]


def cut_take_over(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection to a shared store is cut behind the first take-over."""
    take_over, taken = proxy.store.take_over, list[str]()

    async def cut_once(*arguments: Any, **named: Any) -> Any:
        found = await take_over(*arguments, **named)
        if found is not None and not taken:
            taken.append(found[0].turn_id)
            raise TakeOverUnknown("cut", found[0].turn_id)
        return found

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(proxy.store, "take_over", cut_once)


async def test_what_a_lost_reply_has_taken_over_is_given_back_before_the_client_has_the_error(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next retry would begin again."""
    sender.upstream(Scripted(STEP, BROKEN, ANSWER))
    await sender.ask("x")
    with monkeypatch.context() as patch:
        cut_take_over(sender, patch)
        runner, played = await sender.prepare([user("x")], Framing.JSON)
        async for out in runner.output():
            played.take(out)
            (turn,) = await sender.turns()
            assert turn.broke_off is not None
        assert played.status == 503
    assert (await sender.ask("x")).text == "Wait. done"
    assert sender.tools.begun == ["send"]


async def test_calls_that_a_lost_reply_has_taken_over_are_not_begun_anew(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, for an answer without a loop."""
    await sender.policy(delivery="placeholder")
    target, _ = sender.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    answered = encode(says(call("send"), finish="STOP"))

    async def ask(whole: bool) -> bytes | Reply:
        sent = await sender.forwarded({"contents": [user("x")]}, target)
        assert sent.exchange is not None
        capture = Capture(sender.grafter, sent.exchange, "application/json")
        answer = await capture.whole(answered)
        await capture.settle(whole)
        return answer

    assert isinstance(await ask(False), bytes)
    with monkeypatch.context() as patch:
        cut_take_over(sender, patch)
        refused = await ask(True)
        assert isinstance(refused, Reply)
        assert refused.status == 503
        (turn,) = await sender.turns()
        assert turn.broke_off is not None
        assert isinstance(await ask(True), bytes)
    assert len(await sender.calls()) == 1


async def test_a_shared_store_has_the_end_of_an_answer_before_its_client_has_the_error(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may send the request again at once, to another process."""
    mark, marked = sender.store.mark_broken_off, list[str]()

    async def refuse_twice(session: str, turn_id: str, **named: Any) -> bool:
        marked.append(turn_id)
        if len(marked) < 3:
            raise StoreUnavailable("no answer")
        return await mark(session, turn_id, **named)

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sender.store, "mark_broken_off", refuse_twice)
    monkeypatch.setattr(sender.store, "traffic", Traffic())
    sender.upstream(Scripted(STEP, BROKEN))
    runner, played = await sender.prepare([user("x")], Framing.SSE)
    async for out in runner.output():
        played.take(out)
        if b'"error"' in played.body:
            assert len(marked) == 3
    assert played.documents[-1] == google_error(400)
    (turn,) = await sender.turns()
    assert turn.broke_off is not None


async def test_the_end_of_an_answer_is_not_noted_later_if_another_proxy_has_it_by_then(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This proxy's lease ran out while it could not reach the store."""
    mark, refused = sender.store.mark_broken_off, list[str]()

    async def refuse_once(session: str, turn_id: str, **named: Any) -> bool:
        if not refused:
            refused.append(turn_id)
            raise StoreUnavailable("no answer")
        return await mark(session, turn_id, **named)

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 3600)
    monkeypatch.setattr(sender.store, "mark_broken_off", refuse_once)
    sender.upstream(Scripted(STEP, BROKEN))
    await sender.ask("x")
    (turn,) = await sender.turns()
    await sender.store.drop("this")
    await sender.store.hold("other", 3600)
    assert await sender.store.take_over("default", turn.request_key, window=600.0, proxy_id="other")
    await sender.executors.catch_up()
    assert refused == [turn.turn_id]
    (turn,) = await sender.turns()
    assert (turn.proxy_id, turn.broke_off) == ("other", None)
