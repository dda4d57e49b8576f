"""`ping`, and with it `/healthz`, says so where what is written now would be lost or refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteStore
from store.base import StoreUnavailable, StoreUnusable
from store.models import Policy
from tests.permissions import modes_apply
from tests.store.records import save


def content_of(path: Path) -> bytes:
    return path.read_bytes()


async def test_ping_writes(store: SqliteStore, path: Path) -> None:
    await store.ping()
    assert store._db
    before = store._db.total_changes
    await store.ping()
    assert store._db.total_changes > before


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_goes_while_it_is_used_is_noticed_and_nothing_more_is_written(
    store: SqliteStore, path: Path, how: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put_policy("one", Policy())
    gone = path.with_name(path.name + suffix)
    gone.rename(gone.with_name("moved"))
    if how == "replaced":
        gone.write_bytes(gone.with_name("moved").read_bytes())
    with pytest.raises(StoreUnavailable, match=f"{gone.name} was deleted or replaced"):
        await store.ping()
    for refused in (store.put_policy("two", Policy()), save(store, "t1"), store.hold("p", 1.0), store.sync()):
        with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
            await refused
    os.replace(gone.with_name("moved"), gone)
    await store.ping()
    await store.put_policy("two", Policy())


@pytest.mark.parametrize("method", ["sync", "hold"])
async def test_acknowledgements_and_the_upkeep_notice_it_too(store: SqliteStore, path: Path, method: str) -> None:
    os.unlink(path)
    with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
        await (store.sync() if method == "sync" else store.hold("p", 1.0))


async def test_a_file_that_may_not_be_written_any_more_is_noticed(store: SqliteStore, path: Path) -> None:
    os.chmod(path, 0o400)
    with modes_apply(), pytest.raises(StoreUnavailable, match="no longer writable"):
        await store.ping()


def spoil(path: Path) -> None:
    """Overwrite the beginning of each page with records of the database."""
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 2048):
        if b"Oslo" in content[at : at + 2048]:
            content[at : at + 64] = b"\xa5" * 64
    with path.open("r+b") as file:
        file.write(content)


async def test_a_damaged_database_stops_the_start_and_says_what_to_do(store: SqliteStore, path: Path) -> None:
    for number in range(50):
        await save(store, f"t{number}")
    await store.close()
    spoil(path)
    before = content_of(path)
    with pytest.raises(StoreUnusable, match=r"is damaged: .*toolgraft recover"):
        await SqliteStore(path).open()
    assert content_of(path) == before


async def test_damage_that_is_come_across_is_kept_in_mind(store: SqliteStore, path: Path) -> None:
    for number in range(50):
        await save(store, f"t{number}")
    assert store._db
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    spoil(path)
    store._db.execute("PRAGMA shrink_memory")
    with pytest.raises(StoreUnavailable, match="malformed"):
        await store.calls(limit=1000)
    with pytest.raises(StoreUnavailable, match=r"damaged.*malformed"):
        await store.ping()


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from store.backends.sqlite import SqliteStore
from store.base import StoreUnavailable
from store.models import Policy

path = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(path)

async def main():
    await store.open()
    await store.put_policy("one", Policy(delivery="loop"))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size, most))
    for refused in (store.ping, lambda: store.put_policy("one", Policy())):
        try:
            await refused()
        except StoreUnavailable:
            print("refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await store.ping()
    print((await store.session("one")).policy.delivery)
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_is_told_of_and_so_is_the_space_after_it(path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["refused", "refused", "loop"], "")
