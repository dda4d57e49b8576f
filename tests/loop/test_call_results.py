"""A store that fails when the answer of a call is stored: every answer to the client is in its next turn."""

import asyncio
from typing import Any

import pytest

from addon.graft import late_writes
from addon.surfaces.incoming import Framing
from store.backends.memory import MemoryStore
from store.base import StoreUnavailable
from store.models import Call, Executor, Status, ToolRules
from tests.contents import model, user
from tests.loop.conftest import Proxy, Scripted, call, says, until

ANSWER = [says("done", finish="STOP")]


class Full(MemoryStore):
    """A store that does not take answers, nor ends calls, for so many times."""

    failures = 0.0

    async def answer(self, *args: Any, **kwargs: Any) -> tuple[Call, bool]:
        self._fail_at_first()
        return await super().answer(*args, **kwargs)

    async def settle(self, *args: Any, **kwargs: Any) -> Call:
        self._fail_at_first()
        return await super().settle(*args, **kwargs)

    def _fail_at_first(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise StoreUnavailable("the disk is full")


@pytest.fixture
async def full() -> Proxy:
    async def send() -> str:
        return "sent"

    proxy = Proxy(store=Full())
    proxy.tools.add("send", send)
    await proxy.open()
    return proxy


def failing(proxy: Proxy, times: float) -> None:
    assert isinstance(proxy.store, Full)
    proxy.store.failures = times


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_result_that_the_store_took_later_is_in_the_next_turn(full: Proxy, framing: Framing) -> None:
    failing(full, 1)
    upstream = full.upstream(Scripted([says(call("send"), finish="STOP")], ANSWER, ANSWER))
    played = await full.ask("x", framing=framing)
    played.check()
    assert [one.status for one in await full.calls()] == [Status.DONE]
    await full.ask("x", model("done"), user("y"))
    assert [next(iter(part)) for content in upstream.bodies[-1]["contents"] for part in content["parts"]] == [
        "text",
        "functionCall",
        "functionResponse",
        "text",
        "text",
    ]


@pytest.mark.parametrize("framing", list(Framing))
async def test_an_answer_fails_whose_results_the_store_does_not_take(full: Proxy, framing: Framing) -> None:
    failing(full, float("inf"))
    full.upstream(Scripted([says(call("send"), finish="STOP")], ANSWER))
    played = await full.ask("x", framing=framing)
    assert played.documents[-1]["error"]["code"] == 503
    assert played.status == (503 if framing is Framing.JSON else 200)
    assert not (await full.turns())[0].delivered
    failing(full, 0)
    await until_stored(full)
    assert [one.result for one in await full.calls()] == ["sent"]


async def test_an_answer_goes_on_without_them_where_the_settings_say_so(full: Proxy) -> None:
    full.grafter.settings = full.settings.model_copy(update={"on_store_error": "pass"})
    failing(full, float("inf"))
    full.upstream(Scripted([says(call("send"), finish="STOP")], ANSWER))
    (await full.ask("x")).check()


async def test_calls_that_run_on_behind_an_answer_are_stored_as_soon_as_the_store_takes_them(full: Proxy) -> None:
    await full.declare({"name": "manual", "description": "d"}, manual=ToolRules())
    failing(full, 2)
    full.upstream(Scripted([says(call("send"), call("manual"), finish="STOP")]))
    await full.ask("x", framing=Framing.SSE)
    await until(lambda: not full.executors._tasks)
    await until_stored(full)
    assert (await full.calls())[0].result == "sent"


async def test_a_call_that_could_not_be_ended_is_ended_later(full: Proxy) -> None:
    await full.declare({"name": "remote", "description": "d"}, remote=ToolRules(executor=Executor(type="worker")))
    full.upstream(Scripted([says(call("remote"), finish="STOP")]))
    runner, played = await full.prepare([user("x")], Framing.SSE)
    output = runner.output()

    async def read() -> None:
        async for out in output:
            played.take(out)

    reading = asyncio.ensure_future(read())
    await until(lambda: bool(full.executors._tasks))
    failing(full, 1)
    reading.cancel()
    await asyncio.wait({reading})
    await output.aclose()
    await until_stored(full)
    assert [one.status for one in await full.calls()] == [Status.EXPIRED]


async def test_unstored_answers_are_tried_once_more_at_the_end(full: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 3600)
    failing(full, float("inf"))
    full.upstream(Scripted([says(call("send"), finish="STOP")], ANSWER))
    await full.ask("x")
    failing(full, 0)
    await full.close()
    assert [one.result for one in await full.calls()] == ["sent"]


async def until_stored(proxy: Proxy) -> None:
    await until(lambda: not proxy.executors.late_writes)
