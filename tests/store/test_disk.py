"""Flushes: in batches, by a thread or by a process that end with their event loop."""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from store import disk, flush_process
from store.disk import NAME, Disk, File
from tests.store.records import SOON

FAILS = """
import os, sys
sys.path.insert(0, {root!r})
from store import flusher
def fdatasync(file):
    if b"bad" in os.pread(file, 10, 0):
        raise OSError(5, "")
os.fdatasync = fdatasync
flusher.main()
"""
"""The process on a disk that cannot keep everything."""


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == NAME}


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - a thread or a process does it
            await asyncio.sleep(0.001)


class Files:
    """Files with their names in them, and which were flushed by the thread. It waits at the file `wait` for `free`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.flushed: list[str] = []
        self.begun, self.free = threading.Event(), threading.Event()
        self.is_bad = True
        monkeypatch.setattr(disk, "flush", self.flush)

    def open(self, name: str) -> File:
        (self.folder / name).write_text(name)
        return File(os.open(self.folder / name, os.O_RDONLY))

    def flush(self, descriptor: int) -> None:
        name = os.pread(descriptor, 10, 0).decode()
        if name == "bad" and self.is_bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.flushed.append(name)
        if name == "wait":
            self.begun.set()
            assert self.free.wait(SOON)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


@pytest.fixture(params=["thread", "process"])
def either(request: pytest.FixtureRequest, files: Files, monkeypatch: pytest.MonkeyPatch) -> Disk:
    root = str(Path(disk.__file__).parents[1])
    monkeypatch.setattr(flush_process, "COMMAND", [sys.executable, "-I", "-c", FAILS.format(root=root)])
    made = Disk()
    made.uses_process = request.param == "process"
    return made


async def test_a_file_is_flushed_once_in_a_batch_and_in_its_order(files: Files) -> None:
    made = Disk()
    wait, first, second = map(files.open, ("wait", "first", "second"))
    waiting = [made.begin(wait)]
    await until(files.begun.is_set)
    waiting += [made.begin(file) for file in (first, second, first)]
    files.free.set()
    async with asyncio.timeout(SOON):
        await asyncio.gather(*waiting)
        assert files.flushed == ["wait", "first", "second"]
        await made.begin(first)
    assert files.flushed == ["wait", "first", "second", "first"]


async def test_an_error_is_that_of_its_file_alone_and_for_good(either: Disk, files: Files) -> None:
    """After a failure the kernel may drop what it could not write, and report success the next time."""
    bad, good = map(files.open, ("bad", "good"))
    async with asyncio.timeout(SOON):
        begun = [either.begin(file) for file in (bad, good, bad)]
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        assert [getattr(outcome, "errno", None) for outcome in outcomes] == [errno.EIO, None, errno.EIO]
        files.is_bad = False
        (files.folder / "bad").write_text("good")
        await either.begin(good)
        with pytest.raises(OSError, match="Input/output error"):
            await either.begin(bad)


async def test_an_error_is_known_to_the_next_batch_though_nobody_waits_for_it(files: Files) -> None:
    made = Disk()
    bad, wait = files.open("bad"), files.open("wait")
    waiting = made.begin(wait)
    leaves = made.begin(bad)
    await until(files.begun.is_set)
    leaves.cancel()
    files.free.set()
    await waiting
    files.is_bad = False
    with pytest.raises(OSError, match="Input/output error"):
        await made.begin(bad)


async def test_a_thread_that_cannot_begin_is_an_error_and_begins_later(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made, file = Disk(), files.open("first")
    async with asyncio.timeout(SOON):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails)
            with pytest.raises(OSError, match="can't start new thread"):
                await made.begin(file)
        await made.begin(file)
    assert files.flushed == ["first"]


def test_an_event_loop_has_one_thread_which_ends_with_it(files: Files) -> None:
    before = threads()

    async def work() -> set[threading.Thread]:
        file = files.open("first")
        assert threads() <= before, "nothing was begun yet"
        await disk.begin_flush(file)
        await disk.begin_flush(file)
        return threads() - before

    (thread,) = asyncio.run(work())
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()


def test_an_event_loop_has_one_process_which_ends_with_it(files: Files) -> None:
    """No signal but SIGKILL ends it before the proxy, and it has nothing open but its connection."""
    before, started = children(), threads()

    async def work() -> int:
        disk.use_process()
        file = files.open("first")
        assert children() <= before, "nothing was begun yet"
        await disk.begin_flush(file)
        (pid,) = children() - before
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        await disk.begin_flush(file)
        assert children() - before == {pid}
        assert os.getsid(pid) == pid
        await until(lambda: not _open_below(pid, files.folder))
        return pid

    with _inheritable(files.folder / "inherited"):
        pid = asyncio.run(work())
    gc.collect()
    asyncio.run(until(lambda: pid not in children()))
    assert files.flushed == []
    assert threads() <= started


async def test_a_process_that_ends_is_replaced_by_the_thread(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for the flush that it had begun. An error that it got and did not tell is got by the thread too: its
    opening of the file is another one."""
    before = children()
    monkeypatch.setattr(flush_process, "COMMAND", ["sh", "-c", "head -c 1 && kill -9 $$"])
    made, file = Disk(), files.open("first")
    made.uses_process = True
    os.lseek(file.lent, 3, os.SEEK_SET)
    assert os.lseek(file.descriptor, 0, os.SEEK_CUR) == 0
    async with asyncio.timeout(SOON):
        await made.begin(file)
        await made.begin(file)
    assert files.flushed == ["first", "first"]
    assert [record.message for record in caplog.records] == [
        "files are flushed by a thread from now on: the process for it has ended"
    ]
    await until(lambda: children() <= before)


async def test_an_idle_process_that_ends_is_replaced_by_the_thread(files: Files) -> None:
    before = children()
    made, file = Disk(), files.open("first")
    made.uses_process = True
    async with asyncio.timeout(SOON):
        await made.begin(file)
        assert files.flushed == []
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        await until(lambda: children() <= before)
        await made.begin(file)
    assert files.flushed == ["first"]


async def test_a_process_that_cannot_start_is_replaced_by_the_thread(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flush_process, "COMMAND", ["/nowhere"])
    made, file = Disk(), files.open("first")
    made.uses_process = True
    async with asyncio.timeout(SOON):
        await made.begin(file)
    assert files.flushed == ["first"]
    (record,) = caplog.records
    assert "No such file" in record.message


def test_the_process_ends_though_the_proxy_was_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, sys
sys.path.insert(0, {str(Path(disk.__file__).parents[1])!r})
from store import disk
async def main():
    disk.use_process()
    await disk.begin_flush(disk.File(os.open({str(tmp_path / "file")!r}, os.O_CREAT)))
    print(open("/proc/thread-self/children").read(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        pid = int(proxy.stdout.readline())
        end = os.pidfd_open(pid)
        proxy.kill()
    asyncio.run(_readable(end))
    os.close(end)


async def _readable(descriptor: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    async with asyncio.timeout(SOON):
        await ended.wait()


def _open_below(pid: int, folder: Path) -> list[Path]:
    """What the process has open there."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            path = link.readlink()
        except FileNotFoundError:  # closed meanwhile
            continue
        if path.is_relative_to(folder):
            found.append(path)
    return found


class _inheritable:
    """A file that children of this process would inherit, as the ports of `--workers` are."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT)
        os.set_inheritable(self._file, True)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
