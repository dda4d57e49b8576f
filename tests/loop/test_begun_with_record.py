"""A call that the proxy runs at once is stored as running: its start is no write of its own."""

import asyncio
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.surfaces.incoming import Framing
from store.base import StoreUnavailable
from store.models import Status
from tests.loop.conftest import Proxy, Scripted, call, says
from tests.loop.retrying import hang_up

ANSWER = [says("done", finish="STOP")]


def step(*names: str) -> list[Document]:
    return [says(*(call(name, f"{name}{number}") for number, name in enumerate(names)), finish="STOP")]


class Writes:
    """The status of each call when it is stored, and the calls that are started later."""

    def __init__(self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: list[Status] = []
        self.started = 0
        self.fails = False
        save, start = proxy.store.save_turn, proxy.store.start

        async def save_turn(turn: Any, calls: Any = (), keys: Any = ()) -> None:
            if self.fails:
                raise StoreUnavailable("full")
            self.stored += [one.status for one in calls]
            await save(turn, calls, keys)

        async def starts(session: str, call_id: str, *, loop_id: str) -> Any:
            self.started += 1
            return await start(session, call_id, loop_id=loop_id)

        monkeypatch.setattr(proxy.store, "save_turn", save_turn)
        monkeypatch.setattr(proxy.store, "start", starts)


@pytest.fixture
async def writes(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Writes:
    async def run() -> str:
        return "found"

    proxy.tools.add("plain", run)
    proxy.tools.add("later", run, after=("plain",))
    await proxy.open()
    return Writes(proxy, monkeypatch)


RUNNING, PENDING, FAILED = Status.RUNNING, Status.PENDING, Status.FAILED
STEPS: dict[str, tuple[list[str], list[Status]]] = {
    "one": (["plain"], [RUNNING]),
    "as many as there are places": (["plain"] * 3, [RUNNING, RUNNING, PENDING]),
    "in order": (["plain", "later"], [RUNNING, PENDING]),
    "unknown": (["nobody's"], [FAILED]),
}


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("name", STEPS)
async def test_a_call_is_stored_as_running_if_nothing_stands_before_it(
    proxy: Proxy, writes: Writes, name: str, framing: Framing
) -> None:
    names, stored = STEPS[name]
    await proxy.policy(parallel=2)
    proxy.upstream(Scripted(step(*names), step(*names), ANSWER))
    played = await proxy.ask("x", framing=framing)
    assert played.text == "done"
    assert writes.stored == stored * 2, "again in each step"
    assert writes.started == writes.stored.count(PENDING)
    assert {one.status for one in await proxy.calls()} == {FAILED if stored == [FAILED] else Status.DONE}
    assert all(one.loop_id for one in await proxy.calls() if one.status is Status.DONE)


async def test_a_call_that_could_not_be_stored_does_not_run(
    proxy: Proxy, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.grafter, "settings", proxy.settings.model_copy(update={"on_store_error": "pass"}))
    proxy.upstream(Scripted(step("plain"), ANSWER))
    writes.fails = True
    assert (await proxy.ask("x")).text == "done"
    assert proxy.tools.begun == []
    assert writes.started == 1


async def test_a_call_stored_as_running_goes_on_if_its_answer_fails_before_it_began(
    proxy: Proxy, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = proxy.executors.start

    def then_fail(*args: Any) -> None:
        start(*args)
        writes.fails = True

    monkeypatch.setattr(proxy.executors, "start", then_fail)
    pieces = [says(call("plain", "1")), says(call("plain", "2"), finish="STOP")]
    proxy.upstream(Scripted(pieces))
    await proxy.ask("x", framing=Framing.SSE)
    (stored,) = await proxy.calls()
    while not stored.status.final:
        changed = await proxy.store.wait_call(stored, 5)
        assert changed is not None
        stored = changed
    assert (stored.status, stored.result) == (Status.DONE, "found")


@pytest.mark.parametrize("written", ["save_turn", "start"])
async def test_a_call_noted_as_running_by_a_loop_that_ended_before_it_ran_runs_when_the_request_comes_again(
    proxy: Proxy, writes: Writes, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The store notes that the call runs, and the loop is cancelled before it hears so."""
    write, noted = getattr(proxy.store, written), asyncio.Event()

    async def and_hang(*args: Any, **named: Any) -> Any:
        done = await write(*args, **named)
        if written == "save_turn" and not (len(args) > 1 and args[1]):
            return done
        noted.set()
        return await asyncio.Future()

    name, repeated = ("plain", [step("plain")]) if written == "save_turn" else ("later", [])
    monkeypatch.setattr(proxy.store, written, and_hang)
    proxy.upstream(Scripted(step(name), *repeated, ANSWER))
    await hang_up(proxy, Framing.SSE, when=lambda _: noted.is_set())
    assert proxy.tools.begun == []
    monkeypatch.setattr(proxy.store, written, write)
    played = await proxy.ask("x", framing=Framing.SSE)
    assert played.text == "done"
    assert proxy.tools.begun == [name]
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED, Status.DONE]
