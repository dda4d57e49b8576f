"""A process is ended by force only while tasks or threads keep it alive."""

import asyncio
import os
import threading
from typing import Any

import pytest

from addon import process


class Exited(BaseException):
    pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def exits(status: int) -> None:
        assert status == 0
        raise Exited

    monkeypatch.setattr(os, "_exit", exits)
    monkeypatch.setattr(process, "GRACE", 0.0)


def closed_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


def test_a_loop_that_does_not_close_ends_the_process_and_what_keeps_it_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(Exited):
        process._end(loop, lambda: ["swallow"])
    loop.close()
    assert "toolgraft: ending the process although something still runs: swallow" in capfd.readouterr().err


def test_a_program_that_goes_on_without_the_loop_is_let_be() -> None:
    process._end(closed_loop(), list)


@pytest.mark.parametrize("where", ["executors", "threads"])
def test_threads_that_the_interpreter_waits_for_at_its_end_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if where == "executors":
        monkeypatch.setattr(threading, "_SHUTTING_DOWN", True)
    else:
        monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])  # those of other tests' files aside
    with pytest.raises(Exited):
        process._end(closed_loop(), list)
    assert "threads of a tool" in capfd.readouterr().err


def test_the_time_begins_when_the_loop_cancels_what_runs_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    loops: list[Any] = []

    def end(loop: asyncio.AbstractEventLoop, left: Any) -> None:
        loops.append(loop)
        began.set()

    monkeypatch.setattr(process, "_end", end)

    async def main() -> asyncio.AbstractEventLoop:
        process.exit_with_loop(list)
        await asyncio.sleep(0)
        assert not began.is_set()
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert began.wait(5)
    assert loops == [loop]
