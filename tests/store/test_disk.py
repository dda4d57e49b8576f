"""Flushes of a file: beside the event loop, shared by all who wait, and none after one has failed."""

import asyncio
import errno
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from store import disk
from store.disk import File
from tests.store.records import SOON

NAME = "toolgraft-disk"


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(NAME)}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.001)


class Device:
    """Holds each flush until `free`, and fails as long as there is a `failure`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.free = threading.Event()
        self.free.set()
        self.failure: OSError | None = None
        monkeypatch.setattr(disk, "flush", self.flush)

    def flush(self, descriptor: int) -> None:
        os.fstat(descriptor)
        self.begun += 1
        assert self.free.wait(SOON)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def opened(folder: Path) -> File:
    return File(os.open(folder / "file", os.O_WRONLY | os.O_CREAT))


async def test_all_that_wait_share_a_flush(device: Device, tmp_path: Path) -> None:
    file = opened(tmp_path)
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(file.begin_flush() for _ in range(10)))
    assert device.begun == 1


async def test_who_asks_during_a_flush_waits_for_the_next(device: Device, tmp_path: Path) -> None:
    """The running one may have begun before the write."""
    file = opened(tmp_path)
    device.free.clear()
    first = file.begin_flush()
    await until(lambda: device.begun == 1)
    later = [file.begin_flush() for _ in range(10)]
    device.free.set()
    async with asyncio.timeout(SOON):
        await asyncio.gather(first, *later)
    assert device.begun == 2


async def test_who_gives_up_ends_the_flush_for_nobody_else(device: Device, tmp_path: Path) -> None:
    file = opened(tmp_path)
    leaves, stays = file.begin_flush(), file.begin_flush()
    leaves.cancel()
    async with asyncio.timeout(SOON):
        await stays
    assert device.begun == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_no_flush_succeeds_after_one_has_failed(device: Device, tmp_path: Path, waits: bool) -> None:
    """The kernel reports an error once, and may have dropped what it could not write. It counts also if whoever waited
    for it has left."""
    file, other = opened(tmp_path), opened(tmp_path)
    device.failure = OSError(errno.EIO, os.strerror(errno.EIO))
    device.free.clear()
    failing = file.begin_flush()
    await until(lambda: device.begun == 1)
    if not waits:
        failing.cancel()
    device.free.set()
    await until(lambda: file.failure)
    device.failure = None
    async with asyncio.timeout(SOON):
        for flush in (failing, file.begin_flush()) if waits else (file.begin_flush(),):
            with pytest.raises(OSError, match="Input/output error"):
                await flush
        await other.begin_flush()


async def test_a_thread_that_cannot_begin_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    file = opened(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(OSError, match="can't start new thread"):
        await file.begin_flush()


def test_a_file_has_one_thread_and_one_descriptor_which_end_with_it(device: Device, tmp_path: Path) -> None:
    before = threads()

    async def work() -> tuple[int, set[threading.Thread]]:
        file = opened(tmp_path)
        assert threads() <= before, "nothing was begun yet"
        await file.begin_flush()
        await file.begin_flush()
        return file.descriptor, threads() - before

    descriptor, (thread,) = asyncio.run(work())
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_flush_that_outlives_the_event_loop_ends_quietly(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = threads()

    async def work() -> None:
        device.free.clear()
        opened(tmp_path).begin_flush()
        await until(lambda: device.begun == 1)

    asyncio.run(work())
    (thread,) = threads() - before
    device.free.set()
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()
    assert caplog.text == ""
