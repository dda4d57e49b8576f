"""What a process knows of the writes of others to a session's ledger: all of them, or that it does not know."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from store.backends import _redis_values as values
from store.backends.redis import RedisStore
from store.factory import open_url
from store.models import Status
from tests.store import servers
from tests.store.records import revision_of, save

pytestmark = pytest.mark.e2e

type Stores = list[RedisStore]
type Touched = tuple[set[str], set[bytes]]


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    url = servers.new_url()
    opened = [store for store in (open_url(url, ttl=1000.0) for _ in range(3)) if isinstance(store, RedisStore)]
    for store in opened:
        await store.open()
    yield opened
    for store in opened:
        await store.close()


def touched(store: RedisStore, since: int) -> Touched | None:
    changes = store.changes("one", since)
    return None if changes is None else (changes.turn_ids, changes.keys - {b""})


async def snapshot_of(store: RedisStore) -> int:
    """The ledger's revision, which the store reads with the writes of others."""
    revision = await revision_of(store)
    assert revision is not None
    return revision


async def lose(store: RedisStore, first: int, lost: int) -> None:
    """Have the server lose the last write: the ledger is back at its first revision."""
    of = store.keys.of
    await store.link.run(
        ("HSET", of("one", "ledger"), "revision", first), ("ZREMRANGEBYSCORE", of("one", "writes"), lost, lost)
    )


async def begun(stores: Stores) -> list[int]:
    """The revision that each store knows of a ledger with a turn."""
    await save(stores[0], "t0", created_at=stores[0].times().wall)
    return [await snapshot_of(store) for store in stores]


async def test_writes_of_others_are_known_after_the_next_snapshot(stores: Stores) -> None:
    one, two, _ = stores
    first, *_ = await begun(stores)
    call = await save(two, "t1", keys=[b"a", b"b"])
    await two.save_plain("one", [b"plain"])
    assert touched(one, first) == (set(), set()), "nobody has told it"
    second = await snapshot_of(one)
    assert touched(one, first) == ({"t1"}, {b"a", b"b", b"plain"})
    await one.answer("one", call.call_id, result=1)
    await snapshot_of(one)
    assert touched(one, second) == ({"t1"}, set())
    assert touched(one, first) == ({"t1"}, {b"a", b"b", b"plain"})


async def test_own_writes_between_those_of_others_are_known_in_their_order(stores: Stores) -> None:
    one, two, _ = stores
    first, *_ = await begun(stores)
    await one.save_plain("one", [b"1"])
    assert touched(one, first) == (set(), {b"1"})
    await two.save_plain("one", [b"2"])
    await one.save_plain("one", [b"3"])
    assert touched(one, first) == (set(), {b"1"}), "what came before the last one is unknown"
    await snapshot_of(one)
    assert touched(one, first) == (set(), {b"1", b"2", b"3"})


async def test_more_writes_than_are_kept_are_unknown(stores: Stores) -> None:
    one, two, _ = stores
    first, *_ = await begun(stores)
    for number in range(values.MOST_WRITES):
        await two.save_plain("one", [b"%d" % number])
    second = await snapshot_of(one)
    assert touched(one, first) == (set(), {b"%d" % number for number in range(values.MOST_WRITES)})
    for number in range(values.MOST_WRITES + 1):
        await two.save_plain("one", [b"%d" % number])
    third = await snapshot_of(one)
    assert touched(one, first) is None
    assert touched(one, second) is None
    await two.save_plain("one", [b"later"])
    await snapshot_of(one)
    assert touched(one, third) == (set(), {b"later"})


async def test_only_so_many_writes_are_kept_and_not_for_long(stores: Stores) -> None:
    one, *_ = stores
    await begun(stores)
    for number in range(values.MOST_WRITES + 20):
        await (one.save_plain("one", [b"%d" % number]) if number % 2 else save(one, f"t{number}"))
    key = one.keys.of("one", "writes")
    count, seconds = await one.link.run(("ZCARD", key), ("TTL", key))
    assert count == values.MOST_WRITES
    assert 0 < seconds <= values.WRITES_KEPT


async def test_writes_that_nobody_has_kept_are_unknown(stores: Stores) -> None:
    """As those of a process of an earlier version."""
    one, two, _ = stores
    first, *_ = await begun(stores)
    await two.save_plain("one", [b"1"])
    await one.link.run(("DEL", one.keys.of("one", "writes")))
    await two.save_plain("one", [b"2"])
    second = await snapshot_of(one)
    assert touched(one, first) is None
    await two.save_plain("one", [b"3"])
    await snapshot_of(one)
    assert touched(one, second) == (set(), {b"3"})


@pytest.mark.parametrize("entry", [b"", b"\xff", b"%032d", b"before after", b"0" * 15 + b"x" * 40, b"9" * 32])
async def test_damaged_writes_are_unknown(stores: Stores, entry: bytes) -> None:
    one, two, _ = stores
    first, *_ = await begun(stores)
    await two.save_plain("one", [b"1"])
    key = one.keys.of("one", "writes")
    ((last, score),) = await one.link.run(("ZRANGE", key, -1, -1, "WITHSCORES"))
    await one.link.run(("ZREM", key, last), ("ZADD", key, score, entry))
    await two.save_plain("one", [b"2"])
    second = await snapshot_of(one)
    assert touched(one, first) is None
    await two.save_plain("one", [b"3"])
    await snapshot_of(one)
    assert touched(one, second) == (set(), {b"3"})


async def test_changes_of_a_ledger_that_was_emptied_are_unknown(stores: Stores) -> None:
    one, two, _ = stores
    first, *_ = await begun(stores)
    await two.delete_session("one")
    await save(two, "t1", keys=[b"new"], created_at=1.0)
    second = await snapshot_of(one)
    assert touched(one, first) is None
    await two.save_plain("one", [b"1"])
    third = await snapshot_of(one)
    assert touched(one, second) == (set(), {b"1"})

    await two.expire()
    assert await snapshot_of(one) == 0
    assert touched(one, third) is None
    await save(two, "t2", created_at=two.times().wall)
    await snapshot_of(one)
    assert touched(one, 0) is None
    assert touched(one, third) is None
    assert await one.delete_session("one")
    assert not await one.delete_session("one"), "nothing is left"


async def test_no_write_is_ever_left_out(stores: Stores) -> None:
    """Whatever three processes write at the same time, and whenever each of them looks."""
    rng = random.Random(7)
    written: list[str] = []
    looked_at = [{revision: 0} for revision in await begun(stores)]  # of each store: how much was written before
    answers = []
    for _ in range(120):
        several = [rng.choice(stores) for _ in range(rng.choice([0, 1, 2, 5, 60]))]
        first = len(written)
        written += (f"t{first + number}" for number in range(len(several)))
        writing = [write(store, name, rng) for store, name in zip(several, written[first:], strict=True)]
        await asyncio.gather(*writing, *(revision_of(store) for store in stores if rng.random() < 0.5))
        for store, before in zip(stores, looked_at, strict=True):
            if rng.random() < 0.5:
                revision = await snapshot_of(store)
                for since, start in before.items():
                    answers.append(found := touched(store, since))
                    assert found is None or found[1] >= {name.encode() for name in written[start:]}
                before.setdefault(revision, len(written))
    known = [found for found in answers if found is not None]
    assert len(known) > len(answers) / 10, "that nothing is known is no answer"


async def write(store: RedisStore, name: str, rng: random.Random) -> None:
    if rng.random() < 0.3:
        await save(store, name, keys=[name.encode(), b"common"], created_at=store.times().wall)
        await store.mark_delivered("one", name)
    else:
        await store.save_plain("one", [name.encode()])


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("forgets", ["all", "the session", ""])
async def test_what_followed_a_revision_that_the_server_has_lost_is_unknown(
    stores: Stores, looks: bool, forgets: str
) -> None:
    one, two, _ = stores
    first, *_ = await begun(stores)
    await two.save_plain("one", [b"lost"])
    lost = await snapshot_of(one)
    assert touched(one, first) == (set(), {b"lost"})
    await lose(one, first, lost)
    if forgets == "all":
        one.forget()
    elif forgets:
        one._writes.drop_all()  # for want of room
    if looks:
        assert await snapshot_of(one) == first
        assert touched(one, lost) is None
    await two.save_plain("one", [b"after"])
    later = await snapshot_of(one)
    assert first < lost < later
    assert touched(one, lost) is None, "its write is undone"
    await two.save_plain("one", [b"last"])
    await snapshot_of(one)
    assert touched(one, later) == (set(), {b"last"})


async def test_a_revision_that_is_given_again_is_unknown(stores: Stores) -> None:
    """By a server that has lost it, and whose clock is behind."""
    one, two, _ = stores
    first, *_ = await begun(stores)
    await one.link.run(("SET", one.keys.number, first + 60_000_000))
    await two.save_plain("one", [b"lost"])
    lost = await snapshot_of(one)
    await lose(one, first, lost)
    await one.link.run(("SET", one.keys.number, lost - 2))
    assert await snapshot_of(one) == first
    for key in (b"1", b"2", b"3"):
        await two.save_plain("one", [key])
        await snapshot_of(one)
        assert touched(one, lost) is None
    await two.save_plain("one", [b"4"])
    later = await snapshot_of(one)
    assert later > lost
    await two.save_plain("one", [b"5"])
    await snapshot_of(one)
    assert touched(one, later) == (set(), {b"5"})


async def test_a_write_with_very_many_turns_leaves_no_entry(stores: Stores) -> None:
    """As when all calls of a dead proxy are settled."""
    one, two, _ = stores
    first, *_ = await begun(stores)
    await one.hold("dead", 60)
    names = [f"turn_{number:016x}" for number in range(1500)]
    for name in names:
        call = {"status": Status.RUNNING, "owner": "loop", "proxy_id": "dead", "created_at": one.times().wall}
        await save(one, name, call=call, created_at=one.times().wall)
    second = await snapshot_of(two)
    await one.drop("dead")
    assert (await one.call("one", f"c-{names[-1]}")).status is Status.EXPIRED
    await snapshot_of(two)
    assert touched(two, first) is None
    assert touched(two, second) is None
    entries = await one.link.run(("ZRANGE", one.keys.of("one", "writes"), 0, -1))
    assert max(map(len, entries[0])) < 20_000


async def test_a_damaged_revision_keeps_nobody_from_writing(stores: Stores) -> None:
    one, two, _ = stores
    await begun(stores)
    ledger = one.keys.of("one", "ledger")
    for write in (one.save_plain("one", [b"plain"]), one.answer("one", "c-t0", result=1)):
        await one.link.run(("HSET", ledger, "revision", "damaged"))
        assert (await one.snapshot("one")).revision is None
        await write
        revision = await snapshot_of(two)
        assert revision > 0
