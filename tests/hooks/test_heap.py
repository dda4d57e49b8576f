"""Freed memory is kept where the C library can be told so."""

import asyncio
import ctypes
import gc
import platform
import re
import time
from pathlib import Path

import pytest

from addon.hooks.heap import collect_less_often, give_back_when_idle, keep_freed_memory


def test_glibc_takes_both_options() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")


@pytest.mark.parametrize("library", [object(), None], ids=["another library", "none"])
def test_other_libraries_stay_as_they_are(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: object) -> object:
        if library is None:
            raise OSError
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not keep_freed_memory()


@pytest.mark.parametrize("library", [object(), None], ids=["another library", "none"])
async def test_other_libraries_are_not_asked_for_freed_memory(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    await asyncio.wait_for(give_back_when_idle(), 5)


@pytest.mark.parametrize(("before", "after"), [(2000, 10_000), (50_000, 50_000)])
def test_garbage_is_collected_less_often(before: int, after: int) -> None:
    own = gc.get_threshold()
    try:
        gc.set_threshold(before, 7, 8)
        collect_less_often()
        assert gc.get_threshold() == (after, 7, 8)
    finally:
        gc.set_threshold(*own)


async def test_freed_memory_is_given_back_once_after_work(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[float] = []
    used = iter([0.0, 5.0, 10.0, 10.0, 10.0, 15.0, 15.0])
    after_each: list[int] = []

    class Library:
        def malloc_trim(self, pad: int) -> None:
            trimmed.append(pad)

    def process_time() -> float:
        after_each.append(len(trimmed))
        try:
            return next(used)
        except StopIteration:
            raise asyncio.CancelledError from None

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(time, "process_time", process_time)
    with pytest.raises(asyncio.CancelledError):
        await give_back_when_idle(0.001)
    assert after_each == [0, 0, 0, 0, 1, 1, 1, 2], "busy, busy, idle, idle, busy, idle"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory and gives it back")
def test_glibc_gives_freed_memory_back() -> None:
    assert keep_freed_memory()
    bodies = [b"x" * (4 * 1024 * 1024 + number) for number in range(24)]
    before = resident()
    bodies.clear()
    assert resident() > before - 16 * 1024
    ctypes.CDLL(None).malloc_trim(0)
    assert resident() < before - 64 * 1024


def resident() -> int:
    """The memory of this process, in KB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])
