"""Calls with a time limit, even if they ignore their cancellation."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from addon.tools import attempts as module
from addon.tools.attempts import abandoned_calls, bounded
from addon.tools.base import ToolError

pytestmark = pytest.mark.usefixtures("eager")


class Stubborn:
    """A call that swallows its cancellation `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.started = asyncio.Event()
        self.over = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self) -> str:
        self.started.set()
        try:
            while self.times and not self.over.is_set():
                try:
                    await self.over.wait()
                except asyncio.CancelledError:
                    self.times -= 1
            return "late"
        finally:
            self.ended.set()


@pytest.fixture(autouse=True)
async def nothing_left(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(module, "GRACE", 0.05)
    yield
    assert abandoned_calls() == []


async def ended(call: Stubborn) -> None:
    call.over.set()
    async with asyncio.timeout(5):
        await call.ended.wait()
        while abandoned_calls():  # noqa: ASYNC110 - the task's own end has no event
            await asyncio.sleep(0)


async def test_the_caller_gets_the_call_s_result_or_error() -> None:
    async def answers() -> int:
        return 3

    async def fails() -> None:
        raise KeyError("no")

    assert await bounded(answers, 5, "f") == 3
    assert await bounded(answers, None, "f") == 3
    with pytest.raises(KeyError, match="no"):
        await bounded(fails, 5, "f")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("3")])
async def test_an_exit_that_would_end_the_event_loop_is_an_error_of_the_tool(error: BaseException) -> None:
    async def exits() -> None:
        raise error

    with pytest.raises(ToolError, match=f"{type(error).__name__}: 3"):
        await bounded(exits, 5, "f")


async def test_a_call_that_cancels_itself_is_cancelled_and_its_caller_is_not() -> None:
    async def cancels() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bounded(cancels, 5, "f")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("times", [0, 1])
async def test_a_call_whose_time_is_out_is_cancelled(times: int, caplog: pytest.LogCaptureFixture) -> None:
    cancelled = asyncio.Event()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    call: Callable[[], Awaitable[Any]] = Stubborn(times) if times else hangs
    with pytest.raises(ToolError, match=r"f took longer than 0\.01 s") as raised:
        await bounded(call, 0.01, "f")
    assert raised.value.retryable
    assert times or cancelled.is_set()
    assert caplog.text == ""


async def test_a_call_that_swallows_its_cancellation_is_left_behind_after_its_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = Stubborn(1000)
    async with asyncio.timeout(5):
        with pytest.raises(ToolError, match="took longer"):
            await bounded(call, 0.01, "f")
    assert abandoned_calls() == ["f"]
    assert "a call of f ignores its cancellation and is abandoned" in caplog.text
    await ended(call)


@pytest.mark.parametrize("cancelled_twice", [False, True])
async def test_a_caller_that_is_cancelled_waits_no_longer_for_such_a_call(cancelled_twice: bool) -> None:
    call = Stubborn(1000)
    caller = asyncio.ensure_future(bounded(call, 3600, "f"))
    await call.started.wait()
    caller.cancel()
    if cancelled_twice:
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.wait({caller}, timeout=5)
    assert caller.cancelled()
    assert abandoned_calls() == ["f"]
    await ended(call)


async def test_a_caller_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await bounded(asyncio.Event().wait, 5, "f")

    caller = asyncio.ensure_future(cancelled())
    await asyncio.wait({caller})
    gc.collect()  # Python would warn about a coroutine that was never awaited
    assert caller.cancelled()


async def test_an_error_of_a_call_that_was_left_behind_is_nobody_s(caplog: pytest.LogCaptureFixture) -> None:
    call = Stubborn(1000)

    async def fails() -> None:
        await call()
        raise ValueError("too late")

    with pytest.raises(ToolError):
        await bounded(fails, 0.01, "f")
    await ended(call)
    gc.collect()
    assert "too late" not in caplog.text
