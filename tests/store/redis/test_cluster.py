"""Redis Cluster: a store is on one of its primaries, wherever that is now."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis
from redis.crc import key_slot

from store.backends import _redis_values as keys
from store.backends.redis import RedisStore
from store.factory import open_url
from store.models import Policy, Status
from tests.store import servers
from tests.store.records import WORKERS, save
from tests.store.redis.test_failover import can_save, until

pytestmark = pytest.mark.e2e


async def open_store(url: str) -> RedisStore:
    store = open_url(url, ttl=1000.0)
    assert isinstance(store, RedisStore)
    await store.open()
    return store


@pytest.fixture
async def store() -> AsyncIterator[RedisStore]:
    store = await open_store(servers.new_cluster_url())
    yield store
    await store.close()


def slot_of(tag: str) -> int:
    return key_slot(tag.encode())


def owner_of(ports: list[int], slot: int) -> int:
    """The port of the slot's primary, as the first node knows it that answers."""
    for first, last, (_, port, *_), *_ in servers.ask(ports[0], "CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return int(port)
    raise AssertionError("all slots have an owner")


def test_all_keys_of_a_store_in_a_cluster_have_one_slot() -> None:
    names = keys.Keys("p:1", one_slot=True)
    shared = [value for value in vars(names).values() if isinstance(value, bytes)]
    sessions = [names.of(session, name) for session in ("a", "call") for name in keys.SESSION]
    found = [*shared, *sessions, names.of_call("c"), names.of("a", "events"), names.shared("applied:1")]
    assert len(set(found)) == len(found) > 60
    for key in found:
        tag = key.partition(b"{")[2].partition(b"}")[0].decode()
        assert slot_of(tag) == slot_of("p:1")


async def test_a_store_is_found_from_any_node_and_shared() -> None:
    """With prefixes of all three primaries."""
    ports = servers.shared_cluster(servers.program_under_test())
    owners = set()
    for port in (*ports, *ports):
        prefix = servers.new_cluster_url().partition("=")[2]
        owners.add(owner_of(ports, slot_of(prefix)))
        one = await open_store(f"redis+cluster://127.0.0.1:1,127.0.0.1:{port}?prefix={prefix}")
        other = await open_store(f"redis+cluster://127.0.0.1:{ports[0]}?prefix={prefix}")
        await one.put_policy("s", Policy())
        assert await other.session("s") is not None
        followed = asyncio.ensure_future(other.follow(None, await other.last_event_id(), 10))
        call = await save(one, "t1", call=WORKERS)
        assert [event.type for event in await followed][:1] == ["turn.created"]
        claimed = await other.claim(call.session, [call.name], lease=10, worker="w")
        assert claimed is not None
        assert claimed.status is Status.RUNNING
        assert (await one.find_call(call.call_id)).status is Status.RUNNING
        assert [session.name for session in (await other.sessions()).items] == ["s"]
        await one.close()
        await other.close()
    assert len(owners) > 1


async def test_writes_go_on_while_the_slot_moves(store: RedisStore) -> None:
    ports = servers.shared_cluster(servers.program_under_test())
    slot = slot_of(store.keys.prefix)
    written: list[str] = []
    moving = True

    def goes_on(before: int) -> Callable[[], bool]:
        return lambda: len(written) > before + 5 or writing.done()

    async def write() -> None:
        while moving:
            turn_id = f"t{len(written):04}"
            await save(store, turn_id)
            written.append(turn_id)

    writing = asyncio.ensure_future(write())
    for _ in range(3):
        before = len(written)
        source = owner_of(ports, slot)
        target = next(port for port in ports if port != source)
        await asyncio.to_thread(move, ports, slot, source, target)
        await asyncio.to_thread(servers.until, goes_on(before))
    moving = False
    await writing
    found = await store.turns("one", limit=1000)
    assert [turn.turn_id for turn in found.items] == written
    events = await store.events(after=None, limit=1000)
    assert [event.data["turn_id"] for event in events if event.type == "turn.created"] == written


async def test_while_the_slot_moves_writes_wait_and_reads_follow_the_keys(
    store: RedisStore,
) -> None:
    ports = servers.shared_cluster(servers.program_under_test())
    slot = slot_of(store.keys.prefix)
    source = owner_of(ports, slot)
    target = next(port for port in ports if port != source)
    await save(store, "t1")
    servers.ask(source, "CONFIG", "RESETSTAT")
    begin_to_move(slot, source, target)
    servers.ask(source, "MIGRATE", "127.0.0.1", target, store.keys.number.decode(), 0, 5000)
    writing = asyncio.ensure_future(save(store, "t2"))
    await asyncio.to_thread(servers.until, lambda: "TRYAGAIN" in servers.ask(source, "INFO", "errorstats"))
    assert not writing.done()
    move_keys(slot, source, target)
    assert owner_of([source], slot) == source
    for _ in range(5):  # the write is tried again meanwhile, and must not cut their connections
        pages = await asyncio.gather(*(store.turns("one") for _ in range(8)))
        assert [[turn.turn_id for turn in page.items] for page in pages] == [["t1"]] * 8
    assert not writing.done()
    end_of_move(ports, slot, source, target)
    await writing
    assert [turn.turn_id for turn in (await store.turns("one")).items] == ["t1", "t2"]
    assert owner_of([source], slot) == target


def begin_to_move(slot: int, source: int, target: int) -> None:
    servers.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", servers.ask(source, "CLUSTER", "MYID"))
    servers.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", servers.ask(target, "CLUSTER", "MYID"))


def move_keys(slot: int, source: int, target: int) -> None:
    """Key by key, as redis-cli does it: meanwhile some are here and some there."""
    while names := servers.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
        servers.ask(source, "MIGRATE", "127.0.0.1", target, names[0], 0, 5000)


def end_of_move(ports: list[int], slot: int, source: int, target: int) -> None:
    node = servers.ask(target, "CLUSTER", "MYID")
    for port in (target, source, *ports):
        servers.ask(port, "CLUSTER", "SETSLOT", slot, "NODE", node)


def move(ports: list[int], slot: int, source: int, target: int) -> None:
    begin_to_move(slot, source, target)
    move_keys(slot, source, target)
    end_of_move(ports, slot, source, target)


@pytest.mark.long
async def test_a_replica_takes_over_and_has_what_it_confirmed() -> None:
    with servers.running_cluster(servers.program_under_test(), replicas=1) as ports:
        prefix = next(name for name in map(str, range(1000)) if owner_of(ports, slot_of(name)) == ports[0])
        store = await open_store(f"redis+cluster://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}?prefix={prefix}")
        await save(store, "t1")
        await store.sync()
        await asyncio.to_thread(end, ports[0])
        await until(lambda: can_save(store, "t2"))
        assert [turn.turn_id for turn in (await store.turns("one")).items] == ["t1", "t2"]
        # Not each node knows of the new owner as soon as the store does.
        await asyncio.to_thread(servers.until, lambda: owner_of(ports[1:], slot_of(prefix)) == ports[3])
        await store.close()


def end(port: int) -> None:
    try:
        servers.ask(port, "SHUTDOWN", "NOSAVE", "NOW", "FORCE")
    except redis.ConnectionError:
        pass
