"""Work for the disk: in batches, in a thread that ends."""

import asyncio
import gc
import threading

import pytest

from store.disk import DiskThread
from tests.store.records import SOON

NAME = "toolgraft-test"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def test_what_is_added_meanwhile_is_one_batch() -> None:
    batches: list[list[int]] = []
    begun, free = threading.Event(), threading.Event()

    def work(batch: list[int]) -> None:
        batches.append(batch)
        begun.set()
        assert free.wait(SOON)

    disk = DiskThread(NAME, work)
    waiting = [asyncio.ensure_future(disk.add(number)) for number in (1, 2)]
    async with asyncio.timeout(SOON):
        while not begun.is_set():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.001)
        waiting += [asyncio.ensure_future(disk.add(number)) for number in (3, 4)]
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*waiting)
    assert batches == [[1, 2], [3, 4]]
    disk.close()


async def test_an_error_is_raised_for_its_batch_alone() -> None:
    def work(batch: list[int]) -> None:
        if 1 in batch:
            raise OSError("no space")

    disk = DiskThread(NAME, work)
    for outcome in await asyncio.gather(disk.add(1), disk.add(2), return_exceptions=True):
        assert isinstance(outcome, OSError)
    await disk.add(3)
    disk.close()


async def test_a_thread_that_cannot_begin_is_an_error_and_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk = DiskThread[int](NAME, lambda batch: None)
    async with asyncio.timeout(SOON):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails)
            with pytest.raises(OSError, match="can't start new thread"):
                await disk.add(1)
        await disk.add(2)
    disk.close()


async def test_what_is_not_begun_when_the_thread_ends_fails() -> None:
    batches: list[list[int]] = []
    disk = DiskThread[int](NAME, batches.append)
    await disk.add(1)
    late = asyncio.ensure_future(disk.add(2))
    await asyncio.sleep(0)
    disk.close()
    with pytest.raises(OSError, match="has ended"):
        await asyncio.wait_for(late, SOON)
    assert batches == [[1]]
    assert not threads()


@pytest.mark.parametrize("is_closed", [True, False])
async def test_the_thread_ends_with_its_object(is_closed: bool) -> None:
    disk = DiskThread[int](NAME, lambda batch: None)
    assert not threads(), "nothing was added yet"
    await disk.add(1)
    (thread,) = threads()
    if is_closed:
        disk.close()
    del disk
    gc.collect()
    await asyncio.to_thread(thread.join, SOON)
    assert not thread.is_alive()
