"""What the control API acknowledged survives a power failure: by count and order of what the kernel is asked."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.control.app import create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.state_folder import write_file
from store import disk
from store.base import Durability
from store.factory import open_url
from tests.control.conftest import ADDRESS, TOKEN, Capture

COUNT = 50


class Proxy:
    """The control API over SQLite, and how often its log was flushed."""

    def __init__(self, folder: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = open_url(f"sqlite:///{folder}/graft.db", ttl=3600.0, durability=durability)
        self.capture = Capture(self.store)
        app = create_app(
            store=self.store,
            settings=Settings(state=folder, durability=durability),
            token=TOKEN,
            metrics=Metrics(),
            version="test",
        )
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ADDRESS, headers=headers)
        self.flushed = 0
        log = folder / "graft.db-wal"
        flush = disk.flush

        def counted(file: int) -> None:
            flush(file)
            if os.path.samestat(os.fstat(file), log.stat()):  # so that one thread alone counts
                self.flushed += 1

        monkeypatch.setattr(disk, "flush", counted)

    async def answer(self, number: int) -> int:
        """Returns how often the log had been flushed when the answer came."""
        answer = await self.client.post(f"/v1/calls/c{number}/result", json={"result": number})
        assert answer.status_code == 200
        return self.flushed


@pytest.fixture(params=["power"])
async def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path, request.param, monkeypatch)
    await proxy.store.open()
    for number in range(COUNT):
        await proxy.capture(f"c{number}")
    yield proxy
    await proxy.client.aclose()
    await proxy.store.close()


async def test_each_acknowledged_result_was_flushed_before_it_was_acknowledged(proxy: Proxy) -> None:
    assert proxy.flushed == 0, "what clients' traffic leaves waits for no disk"
    assert [await proxy.answer(number) for number in range(COUNT)] == list(range(1, COUNT + 1))


async def test_results_at_the_same_time_share_a_flush(proxy: Proxy) -> None:
    await asyncio.gather(*(proxy.answer(number) for number in range(COUNT)))
    assert 1 <= proxy.flushed < COUNT


async def test_a_failed_flush_is_an_error_of_all_later_acknowledgements_until_a_restart(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports an error once, and may have dropped what it could not write."""

    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def status(number: int) -> int:
        answer = await proxy.client.post(f"/v1/calls/c{number}/result", json={"result": number})
        return answer.status_code

    await proxy.answer(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        assert await status(1) == 503
    assert [await status(number) for number in (1, 2, 2)] == [503, 503, 503]
    await proxy.store.close()
    await proxy.store.open()
    await proxy.answer(3)


@pytest.mark.parametrize("proxy", ["process"], indirect=True)
async def test_files_that_need_to_survive_only_the_process_are_not_flushed(proxy: Proxy) -> None:
    assert {await proxy.answer(number) for number in range(COUNT)} == {0}


class AuditLog:
    """What becomes of the audit log, and of the store behind it, in order."""

    def __init__(self, proxy: Proxy, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "audit.jsonl"
        self.order: list[str] = []
        flush, put_policy = disk.flush, proxy.store.put_policy

        fsync = os.fsync

        def noted(file: int) -> None:
            flush(file)
            if os.path.samestat(os.fstat(file), self.path.stat()):
                self.order.append(f"{len(self.path.read_bytes().splitlines())} lines safe")

        def noted_folder(file: int) -> None:
            fsync(file)
            assert os.path.samestat(os.fstat(file), folder.stat())
            self.order.append("folder safe")

        async def done(*arguments: Any, **named: Any) -> Any:
            self.order.append("done")
            return await put_policy(*arguments, **named)

        monkeypatch.setattr(disk, "flush", noted)
        monkeypatch.setattr(os, "fsync", noted_folder)
        monkeypatch.setattr(proxy.store, "put_policy", done)


async def change(proxy: Proxy, number: int = 0) -> None:
    answer = await proxy.client.patch(f"/v1/sessions/s{number}", json={"delivery": "placeholder"})
    assert answer.status_code == 200


async def test_a_line_of_the_audit_log_is_safe_before_what_it_tells_of_is_done(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(proxy, tmp_path, monkeypatch)
    await change(proxy)
    await change(proxy)
    assert log.order == ["folder safe", "1 lines safe", "done", "2 lines safe", "done"]


async def test_each_action_has_its_line_also_where_tasks_begin_at_once(proxy: Proxy, tmp_path: Path) -> None:
    """As in mitmproxy's event loop: a task may have run to its first wait when the name for it is assigned."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    for number in range(3):
        await change(proxy, number)
        assert len((tmp_path / "audit.jsonl").read_bytes().splitlines()) == number + 1


async def test_lines_of_the_audit_log_share_a_flush(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(proxy, tmp_path, monkeypatch)
    await asyncio.gather(*(change(proxy, number) for number in range(COUNT)))
    assert log.order.count("done") == COUNT
    assert len(log.order) < 2 * COUNT
    assert len(log.path.read_bytes().splitlines()) == COUNT


async def test_an_action_whose_audit_line_cannot_be_flushed_is_not_done(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(proxy, tmp_path, monkeypatch)

    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "flush", fails)
        answer = await proxy.client.patch("/v1/sessions/s", json={"delivery": "placeholder"})
        assert answer.status_code == 503
        assert log.order == ["folder safe"]
    await change(proxy)
    assert log.order[-1] == "done"


async def test_a_caller_that_leaves_before_the_line_is_flushed_has_done_nothing(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, begun, may_end = AuditLog(proxy, tmp_path, monkeypatch), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(file: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(5)

    monkeypatch.setattr(disk, "flush", slow)
    leaves = asyncio.ensure_future(change(proxy))
    await asyncio.wait_for(begun.wait(), 5)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    may_end.set()
    await change(proxy, 1)
    assert log.order == ["folder safe", "done"]
    first, refused, _ = map(json.loads, log.path.read_text().splitlines())
    assert refused["refused"] == "CancelledError"
    assert first["id"] == refused["id"]


async def test_the_line_of_an_answer_is_safe_before_the_answer_is_acknowledged(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the answer is stored already: both are flushed together."""
    may_end, path, flush = threading.Event(), tmp_path / "audit.jsonl", disk.flush
    flushed: list[str] = []
    log_is_due = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(file: int) -> None:
        is_log = os.path.samestat(os.fstat(file), path.stat())
        if is_log:
            loop.call_soon_threadsafe(log_is_due.set)
            assert may_end.wait(5)
        flush(file)
        flushed.append("log" if is_log else "store")

    monkeypatch.setattr(disk, "flush", slow)
    answer = asyncio.ensure_future(proxy.answer(0))
    await asyncio.wait_for(log_is_due.wait(), 5)
    assert (await proxy.store.find_call("c0")).status == "done"
    assert not answer.done()
    may_end.set()
    await answer
    assert sorted(flushed) == ["log", "store"]


async def test_an_answer_whose_audit_line_cannot_be_flushed_is_not_acknowledged(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flush = tmp_path / "audit.jsonl", disk.flush

    def fails(file: int) -> None:
        if os.path.samestat(os.fstat(file), path.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(file)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "flush", fails)
        answer = await proxy.client.post("/v1/calls/c0/result", json={"result": 0})
        assert answer.status_code == 503
        assert "the change was made" in answer.json()["detail"]
    await proxy.answer(0)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(line["action"], line["call_id"]) for line in lines] == [("call.answer", "c0")] * 2


@pytest.mark.parametrize("proxy", ["process"], indirect=True)
async def test_the_audit_log_waits_for_no_disk_where_nothing_does(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(proxy, tmp_path, monkeypatch)
    await change(proxy)
    assert log.order == ["done"]
    assert len(log.path.read_bytes().splitlines()) == 1


def test_a_file_of_the_state_folder_is_there_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was not flushed with its folder is lost with the power, and the file with it."""
    asked: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(file: int) -> None:
        fsync(file)
        asked.append("folder" if os.path.samestat(os.fstat(file), tmp_path.stat()) else "file")

    def note_replace(*paths: Any) -> None:
        replace(*paths)
        asked.append("name")

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_file(tmp_path / "token", "secret")
    assert asked == ["file", "name", "folder"]
