"""A replica takes the place of a primary that died: Sentinel says which server is in use."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from store.backends import _redis_base as base
from store.backends.redis import RedisStore
from store.base import NotDurable, Store, StoreUnavailable
from store.factory import open_url
from tests.store import servers
from tests.store.records import save
from tests.store.routes import Route

pytestmark = pytest.mark.e2e

SOON = 30.0


@pytest.fixture
def primary() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def test_what_a_replica_has_confirmed_survives_the_primary(primary: ExitStack, tmp_path: Path) -> None:
    port = primary.enter_context(servers.running(servers.program_under_test(), "--repl-diskless-sync-delay", "0"))
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 300\n"
        "sentinel failover-timeout main 3000\n"
    )
    with servers.running(servers.program_under_test(), "--replicaof", "127.0.0.1", str(port)) as replica:
        await until(lambda: has_data_of_its_primary(replica))
        with servers.running(servers.program_under_test(), str(config), "--sentinel", options_first=True) as sentinel:
            store = open_url(f"redis+sentinel://127.0.0.1:{sentinel}/main", ttl=1000.0)
            await store.open()
            await save(store, "t1")
            await store.sync()
            await until(lambda: knows_replica(sentinel))
            primary.close()
            await until(lambda: can_save(store, "t2"))
            assert [turn.turn_id for turn in (await store.turns("one")).items] == ["t1", "t2"]
            for _ in range(2):
                with pytest.raises(NotDurable):
                    await store.sync()  # there is no replica any more
                await store.ping()
            await store.close()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_new_primary_confirms_no_write_that_only_the_earlier_one_has(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """Its own replica would: it has all that the new primary has. `is_lost`: the write was sent once more, since the
    answer to it was lost."""
    with ExitStack() as stack:
        one = stack.enter_context(servers.running(servers.program_under_test(), "--repl-diskless-sync-delay", "0"))
        following = ("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(one))
        two, three = (stack.enter_context(servers.running(servers.program_under_test(), *following)) for _ in range(2))
        for replica in (two, three):
            await until(partial(has_data_of_its_primary, replica))
        async with Route(one) as route:
            store = open_url(f"redis://127.0.0.1:{route.port}", ttl=1000.0)
            assert isinstance(store, RedisStore)
            await store.open()
            await save(store, "t1")
            await asyncio.gather(*(store.sync() for _ in range(5)))
            await until(partial(has_all_of, two, one))
            await answer_of(two, "REPLICAOF", "NO", "ONE")
            await answer_of(three, "REPLICAOF", "127.0.0.1", str(two))
            await until(lambda: has_data_of_its_primary(three))
            later(monkeypatch, 60)  # nobody asks for t1's confirmation any more
            with monkeypatch.context() as patch:
                if is_lost:
                    patch.setattr(store.link, "script", twice(store.link.script))
                await save(store, "t2")
            route.lead_to(two)
            assert [turn.turn_id for turn in (await store.turns("one")).items] == ["t1"]
            for _ in range(2):
                with pytest.raises(NotDurable, match="another primary"):
                    await store.sync()
                await store.ping()
            later(monkeypatch, 120)
            await save(store, "t2")
            await store.sync()
            await store.close()


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So much time has passed since the writes."""
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds))


def twice(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def run_twice(*arguments: Any, **named: Any) -> Any:
        await run(*arguments, **named)
        return await run(*arguments, **named)

    return run_twice


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


async def has_all_of(port: int, primary: int) -> bool:
    offsets = [await answer_of(one, "INFO", "replication") for one in (port, primary)]
    replica, own = (int(text.partition("master_repl_offset:")[2].split()[0]) for text in offsets)
    return replica == own


async def knows_replica(port: int) -> bool:
    return "slaves=1" in await answer_of(port, "INFO", "sentinel")


async def can_save(store: Store, turn_id: str) -> bool:
    try:
        await save(store, turn_id)
    except StoreUnavailable:
        return False
    return True
