"""A replica takes the place of a primary that died: Sentinel says which server is in use."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from store.base import NotDurable, Store, StoreUnavailable
from store.factory import open_url
from tests.store import servers
from tests.store.records import save

SOON = 30.0


@pytest.fixture
def primary() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def test_what_a_replica_has_confirmed_survives_the_primary(primary: ExitStack, tmp_path: Path) -> None:
    port = primary.enter_context(servers.running("redis-server", "--repl-diskless-sync-delay", "0"))
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 300\n"
        "sentinel failover-timeout main 3000\n"
    )
    with servers.running("redis-server", "--replicaof", "127.0.0.1", str(port)) as replica:
        await until(lambda: has_data_of_its_primary(replica))
        with servers.running("redis-server", str(config), "--sentinel", options_first=True) as sentinel:
            store = open_url(f"redis+sentinel://127.0.0.1:{sentinel}/main", ttl=1000.0)
            await store.open()
            await save(store, "t1")
            await store.sync()
            await until(lambda: knows_replica(sentinel))
            primary.close()
            await until(lambda: can_save(store, "t2"))
            assert [turn.turn_id for turn in (await store.turns("one")).items] == ["t1", "t2"]
            with pytest.raises(NotDurable):
                await store.sync()  # there is no replica any more
            await store.ping()
            await store.sync()
            await store.close()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.05)


async def answer_of(port: int, *command: str) -> str:
    """What the server answers, as text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((" ".join(command) + "\r\n").encode())
    writer.write_eof()
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def has_data_of_its_primary(port: int) -> bool:
    return "master_link_status:up" in await answer_of(port, "INFO", "replication")


async def knows_replica(port: int) -> bool:
    return "slaves=1" in await answer_of(port, "INFO", "sentinel")


async def can_save(store: Store, turn_id: str) -> bool:
    try:
        await save(store, turn_id)
    except StoreUnavailable:
        return False
    return True
