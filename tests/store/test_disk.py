"""Work for the disk: in batches, in a thread that ends with its event loop."""

import asyncio
import gc
import threading

import pytest

from store.disk import NAME, DiskThread, disk_thread
from tests.store.records import SOON


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == NAME}


class Notes:
    """What was called. The thread waits at `wait` for `free`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.begun, self.free = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.calls.append("wait")
        self.begun.set()
        assert self.free.wait(SOON)

    def first(self) -> None:
        self.calls.append("first")

    def second(self) -> None:
        self.calls.append("second")

    def fail(self) -> None:
        raise OSError("no space")


async def test_equal_functions_of_a_batch_are_called_once_and_in_their_order() -> None:
    disk, notes = DiskThread(), Notes()
    waiting = [disk.begin(notes.wait)]
    async with asyncio.timeout(SOON):
        while not notes.begun.is_set():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.001)
        waiting += [disk.begin(function) for function in (notes.first, notes.second, notes.first)]
        notes.free.set()
        await asyncio.gather(*waiting)
        assert notes.calls == ["wait", "first", "second"]
        await disk.begin(notes.first)
    assert notes.calls == ["wait", "first", "second", "first"]


async def test_an_error_is_that_of_its_function_alone() -> None:
    disk, notes = DiskThread(), Notes()
    begun = [disk.begin(function) for function in (notes.fail, notes.first, notes.fail)]
    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError, type(None), OSError]
    await disk.begin(notes.second)
    assert notes.calls == ["first", "second"]


async def test_a_thread_that_cannot_begin_is_an_error_and_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk, notes = DiskThread(), Notes()
    async with asyncio.timeout(SOON):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails)
            with pytest.raises(OSError, match="can't start new thread"):
                await disk.begin(notes.first)
        await disk.begin(notes.second)
    assert notes.calls == ["second"]


def test_an_event_loop_has_one_thread_which_ends_with_it() -> None:
    notes = Notes()
    before = threads()

    async def work() -> set[threading.Thread]:
        assert disk_thread() is disk_thread()
        assert threads() <= before, "nothing was begun yet"
        await disk_thread().begin(notes.first)
        await disk_thread().begin(notes.second)
        return threads() - before

    (thread,) = asyncio.run(work())
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()
