"""Requests whose calls have no results yet: they pass, wait or are blocked."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode
from addon.graft.exchange import Abandoned, Forward, Outcome, Reply
from addon.graft.grafter import Grafter
from addon.surfaces.incoming import Framing, Operation, Target
from store.base import Store, StoreUnavailable
from store.models import Call
from tests.contents import call, model, response, user
from tests.graft.conftest import ON_EACH_BACKEND, WEATHER, Graft, answer, target
from tests.graft.grafter_requests import SOON, STREAM, answer_all, pending


async def when(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[float]:
    """The timeouts of the store's waits, in the order that they begin."""
    begun: list[float] = []
    wait = store.wait_call

    async def noted(call: Call, timeout: float) -> Call | None:
        begun.append(timeout)
        return await wait(call, timeout)

    monkeypatch.setattr(store, "wait_call", noted)
    return begun


async def running(graft: Graft, history: Sequence[Document], **kwargs: Any) -> "asyncio.Task[Outcome]":
    return asyncio.ensure_future(graft.request({"contents": list(history)}, **kwargs))


@ON_EACH_BACKEND
async def test_wait_goes_on_at_once_when_the_result_comes(graft: Graft, waits: list[float]) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)
    task = await running(graft, history)
    await when(lambda: waits)
    await answer_all(graft, {"t": 1})
    outcome = await asyncio.wait_for(task, SOON)
    assert isinstance(outcome, Forward)
    assert decode(outcome.body)["contents"][2] == user(response(value={"t": 1}))


async def test_settings_that_change_while_a_request_waits_disturb_neither_it_nor_later_ones(
    graft: Graft, waits: list[float]
) -> None:
    """Each has a grafter of its own, and all share the budget of what is remembered."""
    history = [user("word " * 600), model("ok"), *await pending(graft, on_pending="wait", pending_timeout=3600)]
    await graft.request({"contents": history[:3]})  # the chat's beginning is remembered
    task = await running(graft, history)
    await when(lambda: waits)
    old = graft.grafter
    graft.grafter = Grafter(old.store, old.settings, old.metrics, (), old.owners, old.budget)
    later = [*history[:2], user("x")]
    assert isinstance(await graft.request({"contents": later}), Forward)
    await answer_all(graft, {"t": 1})
    assert isinstance(await asyncio.wait_for(task, SOON), Forward)
    old._forget()
    assert isinstance(await graft.request({"contents": [*later, model("y"), user("z")]}), Forward)
    assert graft.grafter.budget.sizes()["prefixes"]


async def test_wait_goes_on_only_when_every_call_of_the_step_has_a_result(graft: Graft, waits: list[float]) -> None:
    await graft.tools(WEATHER, on_pending="wait", pending_timeout=3600)
    visible_turn = await graft.ask([user("hi")], answer(call(), call()))
    task = await running(graft, [user("hi"), visible_turn, user("?")])
    await when(lambda: waits)
    one, two = await graft.calls()
    await when(lambda: len(waits) == 2)
    await graft.store.answer(one.session, one.call_id, result=1)
    await when(lambda: len(waits) == 3)
    assert not task.done()
    await graft.store.answer(two.session, two.call_id, result=2)
    assert isinstance(await asyncio.wait_for(task, SOON), Forward)


async def test_wait_ends_when_the_client_hangs_up(graft: Graft, waits: list[float]) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)
    gone = asyncio.Event()
    task = await running(graft, history, hangup=gone.wait)
    await when(lambda: waits)
    gone.set()
    assert await asyncio.wait_for(task, SOON) == Abandoned()


@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_wait_ends_with_its_timeout_and_then_passes(graft: Graft, timeout: float) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=timeout)
    outcome = await asyncio.wait_for(await running(graft, history), SOON)
    assert isinstance(outcome, Forward)
    assert decode(outcome.body)["contents"] == history


async def test_a_wait_that_is_cancelled_leaves_nothing_running(graft: Graft, waits: list[float]) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)
    before = asyncio.all_tasks()
    task = await running(graft, history)
    await when(lambda: waits)
    task.cancel()
    await asyncio.wait({task})
    await when(lambda: asyncio.all_tasks() == before)


async def test_a_store_that_fails_while_a_request_waits_is_told(
    graft: Graft, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await pending(graft, on_pending="wait", pending_timeout=3600)

    async def fail(*_: Any, **__: Any) -> bool:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(graft.store, "wait_call", fail)
    outcome = await graft.request({"contents": history})
    assert isinstance(outcome, Reply)
    assert outcome.status == 503


def event(data: bytes) -> Document:
    document: Document = decode(data.removeprefix(b"data: ").removesuffix(b"\r\n\r\n"))
    return document


JSON, SSE = "application/json; charset=UTF-8", "text/event-stream"
BLOCKED = {
    "json": (target(), JSON, decode),
    "sse": (STREAM, SSE, event),
    "array": (target(Operation.STREAM, Framing.ARRAY), JSON, lambda data: decode(data)[0]),
    "envelope": (target(surface="codeassist"), JSON, lambda data: decode(data)["response"]),
    "envelope, sse": (
        target(Operation.STREAM, Framing.SSE, surface="codeassist"),
        SSE,
        lambda data: event(data)["response"],
    ),
}


@pytest.mark.parametrize(("to", "kind", "read"), BLOCKED.values(), ids=BLOCKED)
async def test_block_answers_with_the_placeholder_again_in_the_form_that_was_asked_for(
    graft: Graft, to: Target, kind: str, read: Callable[[bytes], Document]
) -> None:
    history = await pending(graft, on_pending="block")
    (turn,) = await graft.turns()
    body: Document = {"contents": history}
    outcome = await graft.request({"model": "m", "request": body} if to.request_path else body, to)
    assert isinstance(outcome, Reply)
    assert (outcome.status, outcome.content_type) == (200, kind)
    (candidate,) = read(outcome.body)["candidates"]
    placeholder = f"Tool call completed: get_weather [{turn.turn_id}]"
    assert candidate["content"] == {"parts": [{"text": placeholder}], "role": "model"}
    assert candidate["finishReason"] == "STOP"
    # and so on, until the result is there: then the step is told once, and the user turns join
    retry = [*history, candidate["content"], user("well?")]
    assert isinstance(await graft.request({"contents": retry}), Reply)
    await answer_all(graft, {"t": 1})
    out = await graft.contents(retry)
    assert out == [
        user("hi"),
        model("Let me look.", call()),
        user(response(value={"t": 1})),
        user("?"),
        user("well?"),
    ]


async def test_a_repeated_placeholder_without_its_id_is_not_another_chat_s_step(graft: Graft) -> None:
    history = await pending(graft, on_pending="block")
    assert isinstance(await graft.request({"contents": history}), Reply)
    await answer_all(graft, {"t": 1})
    await graft.ask(history, answer(call(args={"of": "another chat"})))
    await answer_all(graft, {"t": 2})
    retry = [*history, model("Tool call completed: get_weather"), user("well?")]
    assert (await graft.contents(retry))[-2:] == retry[-2:]


async def test_block_does_not_stop_a_chat_that_went_on(graft: Graft) -> None:
    history = await pending(graft, on_pending="block")
    assert isinstance(await graft.request({"contents": [*history, model("ok"), user("?")]}), Forward)
