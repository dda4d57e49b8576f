"""The store fails at each of its calls in turn, while a Live connection begins, its model calls a tool twice, and it
ends: the client is shown no call, the model is told a result that is stored or an error, and the connection goes on."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from addon.hooks import runtime
from store.models import Call
from tests.faults.faulty_store import BUSY, NO_SPACE, PLACE, SLOW, UNFORESEEN, Fault, FaultyStore, check_log
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.harness import Hooks
from tests.hooks.test_live import SETUP, Socket
from tests.loop.test_live import found

TOOL = "get_weather"
TOOLS = f'''
async def {TOOL}(chat: int, step: int) -> dict[str, int]:
    """The weather."""
    return {{"celsius": chat + step}}
'''
STEPS = (1, 2)
TURN: dict[str, Any] = {"serverContent": {"modelTurn": {"parts": [{"text": "Wait."}]}, "turnComplete": True}}


class Connection:
    """`visible`: all that the client got; `responses`: what the model was told of its calls, by step. `refused`: the
    handshakes that were."""

    def __init__(self, hooks: Hooks, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.hooks = hooks
        self.store = store
        self.number = number
        self.socket = Socket(hooks, monkeypatch)
        self.visible: list[str] = []
        self.responses: dict[int, dict[str, Any]] = {}
        self.refused: list[str] = []

    async def open(self) -> bool:
        """Whether the connection has the session's tools."""
        await self.socket.open()
        if self.socket.flow.websocket is None:
            response = self.socket.flow.response
            assert response is not None
            error = json.loads(response.content or b"")["error"]
            assert response.status_code == error["code"] >= 500
            self.refused.append(error["message"])
            return False
        return TOOL in (await self.socket.frame(SETUP)).content.decode()

    async def call(self, step: int) -> None:
        call = {"id": f"f{step}", "name": TOOL, "args": {"chat": self.number, "step": step}}
        for document in ({"toolCall": {"functionCalls": [call]}}, TURN):
            message = await self.socket.frame(document, from_client=False)
            self.visible += [] if message.dropped else [message.content.decode()]
        await self.socket.settle(len(self.responses) + 1)
        (response,) = self.socket.sent[-1]["toolResponse"]["functionResponses"]
        assert (response["id"], response["name"]) == (f"f{step}", TOOL)
        self.responses[step] = response["response"]
        self.socket.injected[-1].sent()

    async def end(self) -> None:
        await self.hooks.call("websocket_end", self.socket.flow)

    async def call_of(self, step: int) -> Call | None:
        calls = (await self.store.store.calls(limit=1000)).items
        return next((one for one in calls if one.args == {"chat": self.number, "step": step}), None)

    async def check(self) -> None:
        """What the model was told is what the store has, once it is well; nothing is left open."""
        assert self.visible == [json.dumps(TURN)] * len(self.responses)
        for step, response in self.responses.items():
            call = await found(partial(self.call_of, step), lambda one: one is None or one.status.final)
            assert PLACE not in str(response)
            if "error" not in response:
                assert response == {"celsius": self.number + step}
                assert call is not None
                assert call.result == response, call


@asynccontextmanager
async def hooks_of(store: FaultyStore, folder: Path, policy: str) -> AsyncIterator[Hooks]:
    file = folder / "tools.py"
    file.write_text(TOOLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "open_url", lambda *_, **__: store)
        hooks = Hooks(on_store_error=policy, state=str(folder), tools=[str(file)])
    await hooks.call("running")
    assert hooks.lifecycle.runtime is not None
    await hooks.lifecycle.runtime.ready.wait()
    try:
        yield hooks
    finally:
        await hooks.done()


@pytest.mark.parametrize("policy", ["fail", "pass"])
async def test_answers_in_a_live_connection_are_stored_wherever_the_store_fails(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "toolgraft")  # what was said before is told there alone
    store = FaultyStore()

    async def run(number: int, fault: Fault, at: int) -> None:
        connection = Connection(hooks, store, monkeypatch, number)
        store.begin()
        store.fail(fault, at)
        with store.watched():
            has_tools = await connection.open()
            for step in STEPS if has_tools else ():
                await connection.call(step)
            await connection.end()
        assert bool(store.raised) == (fault is not SLOW and at < len(store.called)), "the call has come"
        store.recover()
        await connection.check()
        check_log(caplog.records, store.raised, connection.refused)
        if not store.raised:
            assert all("celsius" in connection.responses[step] for step in STEPS)
        assert has_tools or store.raised

    async with hooks_of(store, tmp_path, policy) as hooks:
        await run(-1, SLOW, -1)
        called = len(store.called)
        assert called > 3
        faults = [NO_SPACE, BUSY, UNFORESEEN, SLOW]
        for number, (fault, at) in enumerate((fault, at) for fault in faults for at in range(called)):
            caplog.clear()
            try:
                await run(number, fault, at)
            except Exception as error:
                error.add_note(f"call {at} of the store: {store.called[at:][:1]}, {fault}")
                raise
