"""What the control API acknowledged survives a power failure: by count and order of what the kernel is asked."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.control.app import create_app
from addon.control.token import write_file
from addon.metrics import Metrics
from addon.settings import Settings
from store.backends import _syncs
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
            store=self.store, settings=Settings(state=folder), token=TOKEN, metrics=Metrics(), version="test"
        )
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ADDRESS, headers=headers)
        self.flushed = 0
        flush = _syncs.flush

        def counted(file: int) -> None:
            flush(file)
            self.flushed += 1

        monkeypatch.setattr(_syncs, "flush", counted)

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


@pytest.mark.parametrize("proxy", ["process"], indirect=True)
async def test_what_survives_the_process_alone_is_not_flushed(proxy: Proxy) -> None:
    assert {await proxy.answer(number) for number in range(COUNT)} == {0}


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
