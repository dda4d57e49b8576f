"""A long answer ends when its client hangs up or the server stops, and no later."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from addon.web.tasks import while_connected

BOUND = 5.0


class Client:
    """A client that stays connected until it hangs up."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()
        self.watched = asyncio.Event()
        self.is_watched = False

    async def receive(self) -> dict[str, Any]:
        self.is_watched = True
        self.watched.set()
        try:
            await self._gone.wait()
        finally:
            self.is_watched = False
        return {"type": "http.disconnect"}

    def hang_up(self) -> None:
        self._gone.set()


class Work:
    """Lasts until it is cancelled; then `at_end` decides what becomes of it."""

    def __init__(self, at_end: Callable[[], str] | None = None) -> None:
        self.began = asyncio.Event()
        self.was_cancelled = False
        self._at_end = at_end

    async def run(self) -> str:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            if self._at_end is None:
                raise
        assert self._at_end is not None
        return self._at_end()


def _fails() -> str:
    raise ValueError("while it was cancelled")


async def _waited(coroutine: Coroutine[Any, Any, str], client: Client, *ends: asyncio.Event) -> str | None:
    async with asyncio.timeout(BOUND):
        return await while_connected(client.receive, coroutine, *ends)


@pytest.mark.parametrize("ending", ["hang up", "end"])
@pytest.mark.parametrize(
    ("at_end", "result"),
    [(None, None), (lambda: "last words", "last words"), (_fails, None)],
    ids=["cancelled", "swallows the cancellation", "fails when cancelled"],
)
async def test_work_is_cancelled_when_the_client_goes(
    ending: str, at_end: Callable[[], str] | None, result: str | None
) -> None:
    client, end, work = Client(), asyncio.Event(), Work(at_end)
    task = asyncio.ensure_future(_waited(work.run(), client, end))
    await asyncio.wait_for(work.began.wait(), BOUND)
    client.hang_up() if ending == "hang up" else end.set()
    assert await task == result
    assert work.was_cancelled


async def test_work_that_is_done_first_gives_its_result_and_the_client_is_no_longer_watched() -> None:
    client, end = Client(), asyncio.Event()

    async def work() -> str:
        await client.watched.wait()
        return "done"

    assert await _waited(work(), client, end) == "done"
    await asyncio.sleep(0)
    assert not client.is_watched
    end.set()  # calls nobody
    await asyncio.sleep(0)


async def test_both_ends_at_once_cancel_once() -> None:
    client, ends, work = Client(), [asyncio.Event(), asyncio.Event()], Work(lambda: "last words")
    task = asyncio.ensure_future(_waited(work.run(), client, *ends))
    await asyncio.wait_for(work.began.wait(), BOUND)
    client.hang_up()
    for end in ends:
        end.set()
    assert await task == "last words"
    assert not task.cancelling()


async def test_nothing_begins_once_the_client_is_gone() -> None:
    client, end, work = Client(), asyncio.Event(), Work()
    end.set()
    assert await _waited(work.run(), client, end) is None
    assert not work.began.is_set()


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await _waited(work(), Client())


async def test_a_timeout_of_the_work_is_its_own() -> None:
    async def work() -> str:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
        return "never"

    with pytest.raises(TimeoutError):
        await _waited(work(), Client(), asyncio.Event())


async def test_something_cancelled_that_the_work_waits_for_is_no_result() -> None:
    async def work() -> str:
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        await waited_for
        return "never"

    assert await _waited(work(), Client()) is None


async def test_whoever_cancels_the_answer_cancels_the_work() -> None:
    client, work = Client(), Work()
    task = asyncio.ensure_future(_waited(work.run(), client))
    await asyncio.wait_for(work.began.wait(), BOUND)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.was_cancelled
    await asyncio.sleep(0)
    assert not client.is_watched


async def test_a_connection_whose_reading_fails_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> dict[str, Any]:
        raise OSError("reset by peer")

    work = Work()
    async with asyncio.timeout(BOUND):
        assert await while_connected(receive, work.run()) is None
    assert work.was_cancelled or not work.began.is_set()
    assert "reset by peer" in caplog.text
