"""Live connections with a store and tools: calls are stored, run, answered, cancelled, and end with the connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from addon.core.live import Frame
from addon.loop.live import LiveSession, LiveSessions
from addon.surfaces.incoming import Framing, Operation, Target
from store.base import NotDurable, StoreUnavailable
from store.models import Executor, Status, ToolRules
from tests.loop.conftest import Proxy, until

Json = dict[str, Any]

TARGET = Target("live", Operation.LIVE, Framing.JSON, "", (), ())
SETUP: Json = {"setup": {"model": "models/gemini-live-2.5-flash-preview"}}
AUDIO: Json = {"realtimeInput": {"audio": {"data": "AAAA"}}}


async def found[T](look: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
    """The value as soon as it fits; waits five seconds at most."""
    async with asyncio.timeout(5):
        while not fits(one := await look()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
    return one


class Connection:
    """A session and what it sent upstream."""

    def __init__(self, proxy: Proxy, session: LiveSession, sent: list[Frame]) -> None:
        self.proxy = proxy
        self.session = session
        self.frames = sent

    def client(self, document: Json) -> bytes | None:
        return self.session.from_client(Frame(json.dumps(document).encode()))

    def server(self, document: Json) -> bytes | None:
        return self.session.from_server(Frame(json.dumps(document).encode(), text=False))

    def call(self, *names: str, **args: Any) -> bytes | None:
        calls = [{"id": f"f{n}", "name": name, "args": args} for n, name in enumerate(names)]
        return self.server({"toolCall": {"functionCalls": calls}})

    def cancel(self, *ids: str) -> None:
        self.server({"toolCallCancellation": {"ids": list(ids)}})

    @property
    def response_frames(self) -> list[list[Json]]:
        documents = [json.loads(frame.data) for frame in self.frames]
        return [one["toolResponse"]["functionResponses"] for one in documents if "toolResponse" in one]

    async def answers(self, count: int = 1) -> list[Json]:
        """The responses that went upstream, when there are that many frames of them."""
        await until(lambda: len(self.response_frames) >= count)
        return [one["response"] for frame in self.response_frames for one in frame]

    async def pending(self, count: int = 1) -> list[str]:
        """The ids of the calls, when there are so many."""
        calls = await found(self.proxy.calls, lambda calls: len(calls) >= count)
        return [call.call_id for call in calls]

    async def statuses(self) -> list[tuple[str, Status]]:
        return [(call.name, call.status) for call in await self.proxy.calls()]


type Connect = Callable[..., Awaitable[Connection]]


@pytest.fixture
async def connect(proxy: Proxy) -> AsyncIterator[Connect]:
    lives = LiveSessions()

    async def connects() -> Connection:
        config = await proxy.grafter.session_config("default")
        assert config is not None
        sent: list[Frame] = []
        session = LiveSession(proxy.grafter, proxy.executors, config, TARGET, sent.append)
        lives.add(session)
        made = Connection(proxy, session, sent)
        made.client(SETUP)
        return made

    yield connects
    await lives.close()


async def end(connection: Connection) -> None:
    connection.session.close()
    async with asyncio.timeout(5):
        await connection.session.wait_closed()


async def weather(city: str = "Oslo") -> Json:
    return {"city": city}


async def hangs() -> None:
    await asyncio.Event().wait()


async def test_a_call_is_stored_run_and_answered(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    connection = await connect()
    assert connection.call("weather", city="Rome") is None
    assert await connection.answers() == [{"city": "Rome"}]
    (call,) = await proxy.calls()
    assert (call.name, call.args, call.status, call.result) == (
        "weather",
        {"city": "Rome"},
        Status.DONE,
        {"city": "Rome"},
    )
    assert (call.surface, call.model, call.gemini_id) == ("live", "gemini-live-2.5-flash-preview", "f0")
    (turn,) = await proxy.turns()
    assert (turn.turn_id, turn.surface, turn.delivery, turn.visible) == (call.turn_id, "live", "loop", [])
    assert turn.steps[0].content["parts"] == [
        {"functionCall": {"id": "f0", "name": "weather", "args": {"city": "Rome"}}}
    ]
    assert [(slot.name, slot.call_id) for slot in turn.steps[0].slots] == [("weather", call.call_id)]


async def test_a_call_whose_start_no_replica_has_confirmed_does_not_run(
    proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise NotDurable("no replica")

    proxy.tools.add("weather", weather)
    await proxy.open()
    monkeypatch.setattr(proxy.store, "confirm", fails)
    connection = await connect()
    connection.call("weather")
    (answer,) = await connection.answers()
    assert "could not be run" in answer["error"]
    assert proxy.tools.begun == []


async def test_an_unknown_tool_and_arguments_that_do_not_fit_are_told_to_the_model(
    proxy: Proxy, connect: Connect
) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    proxy.tools.add("weather", weather, schema=schema)
    await proxy.open()
    connection = await connect()
    connection.call("weather", "other", city=1)
    first, second = await connection.answers()
    assert "do not fit" in first["error"]
    assert "unknown tool: other" in second["error"]


async def test_a_tool_goes_by_its_own_behavior_and_scheduling(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("weather", weather, behavior="NON_BLOCKING", scheduling="INTERRUPT")
    await proxy.open()
    connection = await connect()
    setup = connection.client(SETUP)
    assert b'"behavior":"NON_BLOCKING"' in (setup or b"")
    connection.call("weather")
    assert connection.client(AUDIO) is not None
    await connection.answers()
    assert connection.response_frames[0][0]["scheduling"] == "INTERRUPT"


async def test_the_calls_of_a_step_go_in_the_order_that_is_asked_for(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("first", weather)
    proxy.tools.add("second", weather, after=("first",))
    await proxy.open()
    connection = await connect()
    connection.call("second", "first")
    await connection.answers()
    assert proxy.tools.ended == ["first", "second"]


async def test_a_call_without_an_executor_waits_to_be_answered_by_hand(proxy: Proxy, connect: Connect) -> None:
    await proxy.open()
    await proxy.declare({"name": "ask"})
    connection = await connect()
    connection.call("ask")
    (call_id,) = await connection.pending()
    assert await connection.statuses() == [("ask", Status.PENDING)]
    assert connection.client(AUDIO) is None
    await proxy.store.answer("default", call_id, result="yes")
    assert await connection.answers() == [{"result": "yes"}]
    assert json.loads(connection.frames[-1].data) == AUDIO


@pytest.mark.parametrize("by_rule", [True, False])
async def test_a_call_that_nobody_answers_is_an_error_for_the_model(
    proxy: Proxy, connect: Connect, by_rule: bool
) -> None:
    await proxy.open()
    if by_rule:
        await proxy.declare({"name": "ask"}, ask=ToolRules(timeout=0.01))
    else:
        await proxy.declare({"name": "ask"})
        await proxy.policy(pending_timeout=0.01)
    connection = await connect()
    connection.call("ask")
    assert await connection.answers() == [{"error": "nobody answered ask within 0.01 s"}]
    assert await connection.statuses() == [("ask", Status.FAILED)]


async def test_calls_that_wait_for_a_hand_take_no_place_from_those_that_run(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("weather", weather, behavior="NON_BLOCKING")
    await proxy.open()
    await proxy.declare({"name": "ask"})
    await proxy.policy(parallel=1)
    connection = await connect()
    connection.call("ask", "ask", "weather")
    assert await connection.answers() == [{"city": "Oslo"}]


async def test_a_worker_answers_a_call(proxy: Proxy, connect: Connect) -> None:
    await proxy.open()
    await proxy.declare({"name": "work"}, work=ToolRules(executor=Executor(type="worker")))
    connection = await connect()
    connection.call("work")
    await connection.pending()
    claimed = await found(lambda: proxy.store.claim("default", ["work"], lease=30, worker="w"), bool)
    assert claimed is not None
    await proxy.store.answer(claimed.session, claimed.call_id, result={"done": True})
    assert await connection.answers() == [{"done": True}]


async def test_an_approval_is_waited_for_as_long_as_the_connection_is_there(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("weather", weather, approval=True)
    await proxy.open()
    connection = await connect()
    connection.call("weather")
    (call_id,) = await connection.pending()
    await found(lambda: proxy.store.call("default", call_id), lambda call: call.approval == "waiting")
    await proxy.store.decide("default", call_id, True)
    assert await connection.answers() == [{"city": "Oslo"}]


async def test_a_call_that_the_model_takes_back_is_cancelled_alone(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("hangs", hangs)
    proxy.tools.add("weather", weather)
    await proxy.open()
    connection = await connect()
    connection.call("hangs", "weather")
    await until(lambda: proxy.tools.ended == ["weather"])
    connection.cancel("f0")
    assert await connection.answers() == [{"city": "Oslo"}]
    await until(lambda: proxy.tools.cancelled == ["hangs"])
    await end(connection)
    assert await connection.statuses() == [("hangs", Status.EXPIRED), ("weather", Status.DONE)]
    assert (await proxy.calls())[0].error == "cancelled: the model has taken the call back"


async def test_a_call_that_is_taken_back_at_once_is_never_run(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    connection = await connect()
    connection.call("weather")
    connection.cancel("f0")
    await end(connection)
    assert proxy.tools.begun == []
    assert await connection.statuses() == [("weather", Status.EXPIRED)]


def hold_saving(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The store takes its time for turns, as one across a network does: until what is returned is set."""
    go, save = asyncio.Event(), proxy.store.save_turn

    async def saves(*args: Any, **more: Any) -> None:
        await go.wait()
        await save(*args, **more)

    monkeypatch.setattr(proxy.store, "save_turn", saves)
    return go


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("delivery", ["loop", "passthrough"])
@pytest.mark.parametrize("ends", [True, False])
async def test_a_call_that_is_taken_back_while_it_is_being_stored_is_never_run_and_never_left_waiting(
    proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch, delivery: str, ends: bool
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(delivery=delivery)
    connection = await connect()
    go = hold_saving(proxy, monkeypatch)
    connection.call("weather")
    await settled()
    if ends:
        connection.session.close()
    else:
        connection.cancel("f0")
    await settled()
    go.set()
    await end(connection)
    assert proxy.tools.begun == []
    assert await connection.statuses() == [("weather", Status.EXPIRED)]


async def test_an_answer_of_the_client_waits_for_its_call_to_be_stored(
    proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await proxy.open()
    await proxy.declare({"name": "ask"})
    await proxy.policy(delivery="passthrough")
    connection = await connect()
    go = hold_saving(proxy, monkeypatch)
    connection.call("ask")
    connection.client({"toolResponse": {"functionResponses": [{"id": "f0", "name": "ask", "response": {"a": 1}}]}})
    await settled()
    go.set()
    (call,) = await found(proxy.calls, lambda calls: bool(calls) and calls[0].status.final)
    assert (call.status, call.result) == (Status.DONE, {"a": 1})


async def test_a_connection_that_ends_cancels_what_runs_and_sends_nothing_more(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    await proxy.declare({"name": "ask"})
    connection = await connect()
    connection.call("hangs", "ask")
    await until(lambda: proxy.tools.begun == ["hangs"])
    connection.client(AUDIO)
    await end(connection)
    assert proxy.tools.cancelled == ["hangs"]
    assert await connection.statuses() == [("hangs", Status.EXPIRED), ("ask", Status.EXPIRED)]
    assert {call.error for call in await proxy.calls()} == {"cancelled: the connection has ended"}
    assert connection.frames == []


async def test_all_connections_end_with_the_proxy(proxy: Proxy) -> None:
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    config = await proxy.grafter.session_config("default")
    assert config is not None
    lives = LiveSessions()
    session = LiveSession(proxy.grafter, proxy.executors, config, TARGET, lambda frame: None)
    lives.add(session)
    connection = Connection(proxy, session, [])
    connection.client(SETUP)
    connection.call("hangs")
    await until(lambda: proxy.tools.begun == ["hangs"])
    await lives.close()
    assert await connection.statuses() == [("hangs", Status.EXPIRED)]
    await lives.close()


@pytest.mark.parametrize("error", [StoreUnavailable("the disk is full"), ValueError("the disk is full")])
async def test_a_store_that_fails_is_an_error_for_the_model_and_nothing_is_run(
    proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*args: object, **more: object) -> None:
        raise error

    proxy.tools.add("weather", weather)
    await proxy.open()
    connection = await connect()
    monkeypatch.setattr(proxy.store, "save_turn", fails)
    connection.call("weather")
    (answer,) = await connection.answers()
    assert "could not be stored" in answer["error"]
    assert "the disk" not in answer["error"], "what the store says is for the log"
    assert proxy.tools.begun == []


async def test_a_model_that_never_stops_calling_is_told_to(proxy: Proxy, connect: Connect) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(max_rounds=2)
    connection = await connect()
    for count in (1, 2, 3):
        connection.call("weather")
        await connection.answers(count)
    *_, last = await connection.answers(3)
    assert "called 2 times in one turn" in last["error"]
    assert len(proxy.tools.ended) == 2
    assert [(call.round, call.status) for call in await proxy.calls()] == [
        (0, Status.DONE),
        (1, Status.DONE),
        (2, Status.FAILED),
    ]
    connection.server({"serverContent": {"turnComplete": True}})
    connection.call("weather")
    assert (await connection.answers(4))[-1] == {"city": "Oslo"}


async def test_a_client_that_is_shown_the_calls_gives_their_results(proxy: Proxy, connect: Connect) -> None:
    await proxy.open()
    await proxy.declare({"name": "ask"}, ask=ToolRules(executor=Executor(type="worker")))
    await proxy.policy(delivery="passthrough")
    connection = await connect()
    assert connection.call("ask", "ask") is not None
    first, second = await connection.pending(2)
    given = [{"id": "f0", "name": "ask", "response": {"a": 1}}]
    assert connection.client({"toolResponse": {"functionResponses": given}}) is not None
    call = await found(lambda: proxy.store.call("default", first), lambda call: call.status.final)
    assert call.result == {"a": 1}
    assert (await proxy.turns())[0].delivery == "passthrough"
    connection.cancel("f1")
    await end(connection)
    assert (await proxy.store.call("default", second)).status is Status.EXPIRED
    assert connection.frames == []


async def test_calls_of_connections_of_a_proxy_that_is_gone_expire_and_no_others(
    proxy: Proxy, connect: Connect
) -> None:
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    await proxy.declare({"name": "ask"})
    connection = await connect()
    connection.call("ask", "hangs")
    await until(lambda: proxy.tools.begun == ["hangs"])
    await _asked_elsewhere(proxy)
    await proxy.store.drop("this")
    assert [(call.surface, call.status) for call in await proxy.calls()] == [
        ("live", Status.EXPIRED),
        ("live", Status.EXPIRED),
        ("developer", Status.PENDING),
    ]


async def _asked_elsewhere(proxy: Proxy) -> None:
    """A call of another surface, which waits to be answered by hand."""
    live = (await proxy.turns())[0]
    call = (await proxy.calls())[0]
    turn = live.model_copy(update={"turn_id": "turn_1", "surface": "developer"})
    changed = {"turn_id": "turn_1", "surface": "developer", "call_id": "call_1", "owner": "hand", "proxy_id": None}
    await proxy.store.save_turn(turn, [call.model_copy(update=changed)], [])
