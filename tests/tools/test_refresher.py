"""Lists that are read again after changes."""

import asyncio

import pytest

from addon.tools.combined import Refresher

pytestmark = pytest.mark.usefixtures("eager")


class Read:
    """A list whose reading waits until it is released."""

    def __init__(self, fails: int = 0) -> None:
        self.started = 0
        self.under_way = 0
        self.fails = fails
        self.go = asyncio.Semaphore(0)

    async def __call__(self) -> None:
        self.started += 1
        self.under_way += 1
        assert self.under_way == 1, "two readings at once"
        try:
            await self.go.acquire()
            if self.started <= self.fails:
                raise ValueError("no list")
        finally:
            self.under_way -= 1


async def test_a_request_during_a_read_leads_to_one_more_read() -> None:
    read = Read()
    refresher = Refresher(read, "tools")
    for _ in range(3):
        refresher.request()
    await asyncio.sleep(0)
    assert read.started == 1
    refresher.request()
    refresher.request()
    for _ in range(5):
        read.go.release()
    await over(refresher)
    assert read.started == 2
    refresher.request()
    await over(refresher)
    assert read.started == 3


async def test_a_reading_that_is_over_at_once_is_made_each_time_it_is_asked_for() -> None:
    read = Read()
    refresher = Refresher(read, "tools")
    for count in range(1, 4):
        read.go.release()
        refresher.request()
        await over(refresher)
        assert read.started == count


async def test_a_reading_that_fails_is_a_warning_and_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    read = Read(fails=1)
    refresher = Refresher(read, "the tools of x")
    refresher.request()
    await asyncio.sleep(0)
    refresher.request()
    read.go.release()
    read.go.release()
    await over(refresher)
    assert read.started == 2
    assert [record.getMessage() for record in caplog.records] == ["the tools of x stay unchanged: no list"]


async def test_other_readers_are_not_disturbed() -> None:
    read = Read()
    refresher = Refresher(read, "tools")
    async with refresher.lock:
        refresher.request()
        await asyncio.sleep(0)
        assert read.started == 0
    read.go.release()
    await over(refresher)
    assert read.started == 1


async def test_closing_ends_what_is_read() -> None:
    read = Read()
    refresher = Refresher(read, "tools")
    refresher.request()
    await asyncio.sleep(0)
    refresher.request()
    await refresher.close()
    assert (read.started, read.under_way) == (1, 0)
    await refresher.close()


async def over(refresher: Refresher) -> None:
    async with asyncio.timeout(5):
        while refresher._is_running:  # noqa: ASYNC110 - its end has no event
            await asyncio.sleep(0)
