"""The promise of `sync`: it returns after an fsync of the log that began after the earlier writes were committed.

A power failure cannot be tested here, but the order of the requests to the kernel can.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteStore
from store.base import NotDurable, Store, StoreUnavailable
from store.factory import open_url
from store.models import Policy
from tests.store.conftest import SCHEMES, TTL, URLS
from tests.store.records import SOON, save


class Disk:
    """Notes each flush of the log: that it began, and that it was done. `hold` keeps the flushes waiting."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.steps: list[str] = []
        self.begun = 0
        self.free = threading.Event()
        self.free.set()
        self.failure: OSError | None = None

    def flush(self, file: int) -> None:
        self.begun += 1
        self.steps.append("flush begins")
        assert os.path.samestat(os.fstat(file), self.log.stat())
        assert self.free.wait(SOON)
        if self.failure is not None:
            raise self.failure
        self.steps.append("flush ends")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "graft.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def disk(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(store.path.with_name("graft.db-wal"))
    monkeypatch.setattr("store.disk.flush", disk.flush)
    assert store._db
    store._db.set_trace_callback(lambda text: disk.steps.append("commit") if text == "COMMIT" else None)
    return disk


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.001)


async def test_the_log_is_flushed_after_the_commit_and_before_sync_returns(store: SqliteStore, disk: Disk) -> None:
    await store.put_policy("one", Policy())
    await store.sync()
    disk.steps.append("acknowledged")
    assert disk.steps == ["commit", "flush begins", "flush ends", "acknowledged"]
    await store.sync()
    assert disk.begun == 1, "nothing was written since"


async def test_a_write_during_a_flush_waits_for_the_next(store: SqliteStore, disk: Disk) -> None:
    """A running flush may have begun before the write."""
    await store.put_policy("one", Policy())
    disk.free.clear()
    first = asyncio.ensure_future(store.sync())
    await until(lambda: disk.begun == 1)
    await store.put_policy("two", Policy())
    second = asyncio.ensure_future(store.sync())
    await asyncio.sleep(0)
    disk.free.set()
    async with asyncio.timeout(SOON):
        await second
    assert first.done()
    assert disk.steps == ["commit", "flush begins", "commit", "flush ends", "flush begins", "flush ends"]


async def test_all_that_wait_share_a_flush(store: SqliteStore, disk: Disk) -> None:
    disk.free.clear()
    waiting = []
    for number in range(50):
        await save(store, f"t{number}")
        waiting.append(asyncio.ensure_future(store.sync()))
        await asyncio.sleep(0)
    await until(lambda: disk.begun == 1)
    disk.free.set()
    async with asyncio.timeout(SOON):
        await asyncio.gather(*waiting)
    assert disk.begun <= 2


async def test_a_waiter_that_gives_up_ends_the_flush_for_nobody_else(store: SqliteStore, disk: Disk) -> None:
    await store.put_policy("one", Policy())
    disk.free.clear()
    impatient, patient = (asyncio.ensure_future(store.sync()) for _ in range(2))
    await until(lambda: disk.begun == 1)
    impatient.cancel()
    disk.free.set()
    async with asyncio.timeout(SOON):
        await patient
    assert impatient.cancelled()
    assert disk.begun == 1


async def test_the_event_loop_goes_on_while_the_disk_is_slow(store: SqliteStore, disk: Disk) -> None:
    await store.put_policy("one", Policy())
    disk.free.clear()
    waiting = asyncio.ensure_future(store.sync())
    for number in range(20):
        await save(store, f"t{number}")
        await store.answer("one", f"c-t{number}", result=number)
    assert not waiting.done()
    disk.free.set()
    async with asyncio.timeout(SOON):
        await waiting


async def test_a_disk_that_fails_is_told_to_all_that_wait_and_from_then_on(store: SqliteStore, disk: Disk) -> None:
    """After a failure the kernel may drop what it could not write, and report success the next time."""
    await store.put_policy("one", Policy())
    disk.failure = OSError(5, "Input/output error")
    for outcome in await asyncio.gather(store.sync(), store.sync(), return_exceptions=True):
        assert isinstance(outcome, NotDurable)
    disk.failure = None
    with pytest.raises(NotDurable, match="Input/output error"):
        await store.sync()
    assert await store.session("one") is not None, "it was written, for as long as the machine runs"
    await store.close()
    await store.open()
    await store.put_policy("one", Policy())
    await store.sync()


async def test_records_from_before_the_opening_are_on_disk(store: SqliteStore, disk: Disk) -> None:
    await store.put_policy("one", Policy())
    await store.close()
    await store.open()
    await store.sync()
    assert disk.begun == 0


async def test_durability_of_the_process_alone_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_url(f"sqlite:///{tmp_path}/graft.db", ttl=TTL, durability="process")
    await store.open()
    disk = Disk(tmp_path / "graft.db-wal")
    monkeypatch.setattr("store.disk.flush", disk.flush)
    await store.put_policy("one", Policy())
    await store.sync()
    assert disk.begun == 0
    await store.close()


async def test_nothing_but_sync_waits_for_the_disk(store: SqliteStore, disk: Disk) -> None:
    await save(store, "t1", keys=[b"key"])
    await store.look_up("one", keys=[b"key"])
    await store.answer("one", "c-t1", result=1)
    assert disk.begun == 0


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_backend_can_be_asked_and_none_that_is_closed(tmp_path: Path, scheme: str) -> None:
    store: Store = open_url(URLS[scheme](tmp_path), ttl=TTL)
    await store.open()
    await store.put_policy("one", Policy())
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(store.sync() for _ in range(3)))
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.sync()


async def test_a_reader_has_nothing_to_wait_for(store: SqliteStore, disk: Disk) -> None:
    reader = SqliteStore(store.path, read_only=True)
    await reader.open()
    await store.put_policy("one", Policy())
    await reader.sync()
    assert disk.begun == 0
    await reader.close()
