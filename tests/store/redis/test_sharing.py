"""Several processes on one Redis: two stores with the same URL stand for two of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from store.backends import _redis_base as transaction
from store.backends import redis as waits
from store.backends.redis import RedisStore
from store.base import CursorLost, OutcomeUnknown, StoreUnavailable, StoreUnusable, TakeOverUnknown
from store.factory import open_url
from store.models import Call, Policy, Response, Status, Toolset, UndeliveredAnswer
from tests.ports import free_port
from tests.store import servers
from tests.store.records import SOON, WORKERS, a_call, a_turn, revision_of, save, turns_of_the_loop, types

pytestmark = pytest.mark.e2e

WEATHER = ["get_weather"]


@pytest.fixture
async def stores() -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    url = servers.new_url()
    one, two = (open_url(url, ttl=1000.0) for _ in range(2))
    assert isinstance(one, RedisStore)
    assert isinstance(two, RedisStore)
    await one.open()
    await two.open()
    yield one, two
    await one.close()
    await two.close()


type Stores = tuple[RedisStore, RedisStore]


async def test_all_have_the_same_secret_and_epoch(stores: Stores) -> None:
    one, two = stores
    assert (one.secret, one.epoch) == (two.secret, two.epoch)
    assert len(one.secret) == 32


async def test_what_one_writes_the_other_reads_and_goes_on_with(stores: Stores) -> None:
    one, two = stores
    await one.put_toolset("one", Toolset(declarations=[{"name": "f"}]))
    await two.put_policy("one", Policy(delivery="loop"))
    assert await one.session("one") == await two.session("one")
    call = await save(one, "t1", keys=[b"key"], created_at=one.times().wall)
    assert await two.mark_broken_off("one", "t1")
    await one.save_turn(a_turn("t1", "one", call, created_at=1.0, delivered=True), [call])
    found = await two.look_up("one", keys=[b"key"])
    assert found.by_key == {b"key": ["t1"]}
    assert found.turns["t1"].broke_off is not None, "one wrote over what it had not read"
    assert await two.answer("one", call.call_id, result=1) == await _answered(one, call)
    before = await revision_of(one)
    assert before is not None
    await two.save_plain("one", [b"plain"])
    assert await revision_of(one) != before
    changes = one.changes("one", before)
    assert changes is not None
    assert (changes.turn_ids, changes.keys) == (set(), {b"plain"})


async def _answered(store: RedisStore, call: Call) -> tuple[Call, bool]:
    return (await store.answer("one", call.call_id, result=1))[0], True


async def test_both_learn_at_once_whose_tools_one_has_changed(stores: Stores) -> None:
    changed: list[list[str]] = [[], []]
    for store, names in zip(stores, changed, strict=True):
        store.on_change = names.append
    await stores[0].put_toolset("one", Toolset())
    await stores[0].put_policy("two", Policy())
    await stores[0].delete_session("one")
    async with asyncio.timeout(SOON):
        while len(changed[1]) < 2:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
    assert set(changed[0]) == {"one"}
    assert changed[1] == ["one", "one"]


async def test_each_call_is_claimed_once_whoever_is_fastest(stores: Stores) -> None:
    calls = [a_call(f"c{number}", **WORKERS) for number in range(30)]
    await stores[0].save_turn(a_turn("t1", "one", *calls), calls)

    async def work(store: RedisStore, worker: str) -> list[str]:
        claimed = []
        while (call := await store.claim("one", WEATHER, lease=60.0, worker=worker)) is not None:
            claimed.append(call.call_id)
        return claimed

    workers = (work(stores[number % 2], f"w{number}") for number in range(8))
    claimed = await asyncio.gather(*workers)
    assert sorted(one for some in claimed for one in some) == sorted(call.call_id for call in calls)


async def test_concurrent_writes_of_all_kinds_leave_one_winner(stores: Stores) -> None:
    call = await save(stores[0], "t1", call={"approval": "waiting"})
    outcomes: list[Any] = await asyncio.gather(
        *(stores[number % 2].answer("one", call.call_id, result=number) for number in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 1
    session = await stores[0].put_policy("one", Policy())
    changed = await asyncio.gather(
        *(stores[n % 2].put_policy("one", Policy(max_rounds=n + 1), if_version=session.version) for n in range(6)),
        return_exceptions=True,
    )
    assert sum(not isinstance(outcome, Exception) for outcome in changed) == 1


async def test_a_write_of_one_wakes_those_who_wait_at_the_other(stores: Stores) -> None:
    one, two = stores
    call = await save(one, "t1", call=WORKERS)
    last = await two.last_event_id()
    async with asyncio.timeout(SOON):
        waiting = asyncio.ensure_future(two.wait_call(call, 60))
        following = [asyncio.ensure_future(two.follow(session, last, 60)) for session in (None, "one")]
        await turns_of_the_loop()
        answered, _ = await one.answer("one", call.call_id, result=1)
        assert await waiting == answered
        for events in await asyncio.gather(*following):
            assert [event.data["status"] for event in events] == ["done"]


async def test_notices_are_read_at_once_as_soon_as_somebody_waits(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    monkeypatch.setattr(waits, "_REST", 3600.0)
    call = await save(two, "t1", created_at=two.times().wall)
    (cursor,) = [event.event_id for event in await one.follow("one", None, 5.0, limit=1)]
    for number in range(3):  # the reader rests after each notice, since nobody waits then
        waiting = asyncio.ensure_future(one.follow("one", cursor, 20.0))
        await two.put_policy("one", Policy(max_rounds=number + 1))
        cursor = (await waiting)[-1].event_id
    waiting_for_call = asyncio.ensure_future(one.wait_call(call, 20.0))
    await two.answer("one", call.call_id, result=1)
    assert await waiting_for_call == await two.call("one", call.call_id)


async def test_events_that_a_long_stream_has_dropped_are_told(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = stores
    monkeypatch.setattr(transaction, "MAX_EVENTS", 5)
    monkeypatch.setattr(transaction, "MAX_NOTICES", 8)
    await one.put_policy("one", Policy())
    first = await two.last_event_id()
    for _ in range(20):
        await one.put_policy("one", Policy())
    for session, kept in (("one", 5), (None, 5)):
        with pytest.raises(CursorLost):
            await two.events(after=first, session=session)
        events = await two.events(after=None, session=session)
        assert len(events) == kept
        assert await two.events(after=events[0].event_id, session=session) == events[1:]


async def test_events_of_all_sessions_tell_that_one_session_has_dropped_some(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    monkeypatch.setattr(transaction, "MAX_EVENTS", 5)
    await one.put_policy("other", Policy())
    first = await two.last_event_id()
    for _ in range(7):
        await one.put_policy("one", Policy())
    with pytest.raises(CursorLost):
        await two.events(after=first)
    with pytest.raises(CursorLost):
        await two.events(after=first, limit=1)
    assert len(await two.events(after=None)) == 6
    last = (await two.events(after=None))[1].event_id
    assert len(await two.events(after=last)) == 4
    await one.delete_session("one")  # its events are deleted, not lost
    assert [event.type for event in await two.events(after=first)] == ["session.deleted"]


async def test_leases_run_by_the_server_s_clock_whatever_a_proxy_s_own_says(stores: Stores) -> None:
    one, two = stores
    await save(one, "t1", call=WORKERS)
    claimed = await two.claim("one", WEATHER, lease=60.0, worker="w")
    assert claimed is not None
    assert claimed.status is Status.RUNNING
    (now,) = await one.link.run(("TIME",))
    assert claimed.lease_until is not None
    assert abs(claimed.lease_until - 60.0 - now[0]) < 30


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_proxy_whose_clock_is_an_hour_off_takes_nothing_from_others(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, right = servers.new_url(), time.time
    monkeypatch.setattr(time, "time", lambda: right() + hours * 3600)
    wrong, other = open_url(url, ttl=1000.0, clock=time.time), open_url(url, ttl=1000.0, clock=right)
    for store in (wrong, other):
        await store.open()
    for number, (one, two) in enumerate([(wrong, other), (other, wrong)]):
        await one.hold(f"p{number}", 30.0)
        await save(one, f"own{number}", call={"owner": "loop", "proxy_id": f"p{number}"}, created_at=one.clock())
        await save(one, f"t{number}", call=WORKERS, created_at=one.clock())
        claimed = await one.claim("one", WEATHER, lease=30.0, worker="w")
        assert claimed is not None
        assert claimed.lease_until is not None
        assert abs(claimed.lease_until - 30.0 - right()) < 10
        assert await two.claim("one", WEATHER, lease=30.0, worker="v") is None
        assert await two.settle_lost() == []
        assert await two.expire() == 0
    for store in (wrong, other):
        await store.close()


def _and_set(event: asyncio.Event, run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def run_and_set(*arguments: Any, **named: Any) -> Any:
        found = await run(*arguments, **named)
        event.set()
        return found

    return run_and_set


async def test_a_server_that_was_restarted_empty_has_another_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with servers.running(servers.program_under_test(), port=port):
        store = open_url(f"redis://127.0.0.1:{port}", ttl=1000.0)
        assert isinstance(store, RedisStore)
        await store.open()
        await save(store, "t1")
        last, epoch = await store.last_event_id(), store.epoch
        async with asyncio.timeout(SOON):
            await store.follow(None, None, 60)
            # The server ends after the waiter's first look: one in flight would fail, or be sent to the next server.
            looked = asyncio.Event()
            monkeypatch.setattr(store, "events", _and_set(looked, store.events))
            waiting = asyncio.ensure_future(store.follow("one", last, 60))
            await looked.wait()
    with servers.running(servers.program_under_test(), port=port):
        async with asyncio.timeout(10):
            with pytest.raises(CursorLost):
                await waiting
        assert store.epoch != epoch
        with pytest.raises(CursorLost):
            await store.events(after=last)
        await save(store, "t1")
        other = open_url(f"redis://127.0.0.1:{port}", ttl=1000.0)
        await other.open()
        assert (other.epoch, other.secret) == (store.epoch, store.secret)
        await other.close()
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await store.close()


async def test_waiters_wake_after_a_change_of_the_server_whose_clock_is_behind() -> None:
    port = free_port()
    with servers.running(servers.program_under_test(), port=port):
        store, other = (open_url(f"redis://127.0.0.1:{port}", ttl=1000.0) for _ in range(2))
        assert isinstance(store, RedisStore)
        await store.open()
        await store.link.run(("SET", store.keys.number, 4 * 10**15))
        await store.put_policy("one", Policy())
        async with asyncio.timeout(SOON):
            await store.follow(None, None, 60)
        epoch = store.epoch
    with servers.running(servers.program_under_test(), port=port):
        async with asyncio.timeout(SOON):
            while store.epoch == epoch:  # noqa: ASYNC110 - the reader of notices finds it out
                await asyncio.sleep(0.01)
            await turns_of_the_loop()
            waiting = asyncio.ensure_future(store.follow(None, None, 60))
            await other.open()
            await store.put_policy("mine", Policy())
            await waiting
            waiting = asyncio.ensure_future(store.follow(None, await store.last_event_id(), 60))
            await turns_of_the_loop()
            await other.put_policy("one", Policy())
            assert [event.session for event in await waiting] == ["one"]
        await other.close()
        await store.close()


async def test_a_damaged_notice_wakes_all_and_later_ones_are_read(stores: Stores) -> None:
    one, two = stores
    last = await one.last_event_id()
    for damaged in (("x", "y"), ("s", "one", "n", "1", "c", "1", "w", "{"), ("s", b"\xff", "n", "x")):
        await two.link.run(("XADD", two.keys.notices, "*", *damaged))
    async with asyncio.timeout(SOON):
        while int(one._position.partition("-")[0]) < int(last.rpartition("-")[2] or 0) + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(one.follow("one", None, 60))
        await turns_of_the_loop()
        await two.put_policy("one", Policy())
        assert [event.type for event in await waiting] == ["session.updated"]


async def test_a_damaged_notice_hides_no_event_of_others(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    one, two = stores
    await two.put_policy("one", Policy())
    start = await one.last_event_id()
    damaged = ("x", "y"), ("s", "one", "n", "x"), ("s", b"\xff", "n", "1"), ("s", "one")
    first = int(start.rpartition("-")[2]) + 1
    await two.link.run(*(("XADD", two.keys.notices, first + at, *fields) for at, fields in enumerate(damaged)))
    for _ in range(2):
        assert await one.events(after=start) == []
    await two.put_policy("two", Policy())
    assert [event.session for event in await one.events(after=start)] == ["two"]
    assert [event.session for event in await two.events(after=None)] == ["one", "two"]
    logged = [record for record in caplog.records if "a notice" in record.getMessage()]
    assert len(logged) == len(damaged), "each is logged once in a process"


async def test_a_session_that_cannot_be_read_does_not_keep_others_from_expiring(stores: Stores) -> None:
    one, two = stores
    for session in ("bad", "good"):
        await save(one, "t1", session)
    await one.link.run(("DEL", one.keys.of("bad", "dated")), ("SET", one.keys.of("bad", "dated"), "damaged"))
    now = one.times().wall
    two.clock = lambda: now + 2000
    two._clocks = two._new_clocks()
    for _ in range(2):
        await two.expire()
    assert (await two.turns("good")).items == []
    assert float((await two.link.run(("ZSCORE", two.keys.due, "bad")))[0]) > now + 2000


async def test_turns_expire_by_their_date_whether_or_not_it_is_noted_besides_their_place(stores: Stores) -> None:
    one, two = stores
    now = one.times().wall
    for turn_id, created_at in (("now", now), ("moved", now - 500), ("ahead", now + 500)):
        await save(one, turn_id, created_at=created_at)
    (dated,) = await one.link.run(("ZRANGE", one.keys.of("one", "dated"), 0, -1))
    assert dated == [b"moved", b"ahead"]

    async def left(later: float) -> list[str]:
        two.clock = lambda: now + later
        two._clocks = two._new_clocks()
        await two.expire()
        return [turn.turn_id for turn in (await two.turns("one")).items]

    assert await left(490) == ["now", "moved", "ahead"]
    assert await left(510) == ["now", "ahead"]
    assert await left(990) == ["now", "ahead"]
    assert await left(1100) == ["ahead"]
    assert await left(1600) == []


async def test_a_store_that_cannot_be_reached_or_that_refuses_says_so_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    with servers.running(servers.program_under_test(), "--requirepass", "other") as port:
        for refused in (port, free_port()):
            with pytest.raises(StoreUnusable) as error:
                await open_url(f"redis://127.0.0.1:{refused}", ttl=60).open()
            assert str(refused) in str(error.value)
            assert "s3cr3t" not in str(error.value)
        monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "other")
        store = open_url(f"redis://default@127.0.0.1:{port}/3", ttl=60)
        await store.open()
        await store.ping()
        await store.close()


async def test_a_full_server_is_unavailable_for_writes_and_not_for_reads() -> None:
    with servers.running(servers.program_under_test(), "--maxmemory-policy", "noeviction") as port:
        store = open_url(f"redis://127.0.0.1:{port}", ttl=60)
        await store.open()
        assert isinstance(store, RedisStore)
        await store.put_policy("one", Policy())
        await store.link.run(("CONFIG", "SET", "maxmemory", "1"))
        for write in (store.put_policy("two", Policy()), store.ping(), save(store, "t1")):
            with pytest.raises(StoreUnavailable):
                await write
        assert await store.session("one") is not None
        await store.close()


async def test_a_reader_beside_a_proxy_writes_nothing(stores: Stores) -> None:
    await save(stores[0], "t1")
    reader = open_url(servers.new_url(), ttl=60, read_only=True)
    with pytest.raises(StoreUnusable):
        await reader.open()
    url = f"redis://127.0.0.1:{servers.port_of(stores[0])}/0?prefix={stores[0].keys.prefix}"
    reader = open_url(url, ttl=60, read_only=True)
    await reader.open()
    assert (await reader.call("one", "c-t1")).name == "get_weather"
    await reader.ping()
    with pytest.raises(StoreUnavailable):
        await reader.put_policy("one", Policy())
    await reader.close()


async def test_an_unreadable_record_hides_no_other(stores: Stores) -> None:
    one, two = stores
    await one.put_policy("one", Policy())
    for number in range(3):
        await save(one, f"t{number}", keys=[b"key"], created_at=one.times().wall)
    of = one.keys.of
    (value,) = await one.link.run(("HGET", of("one", "turn"), "t1"))
    await one.link.run(
        ("HSET", of("one", "turn"), "t1", value[:-9]),
        ("HSET", of("one", "call"), "c-t1", b"12345678\0\0no record"),
    )
    assert [turn.turn_id for turn in (await two.turns("one")).items] == ["t0", "t2"]
    assert [call.call_id for call in (await two.calls(session="one")).items] == ["c-t0", "c-t2"]
    assert (await two.look_up("one", keys=[b"key"])).by_key == {b"key": ["t2", "t0"]}
    await one.link.run(("HSET", of("one", "session"), "record", "no record", "version", 7))
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await two.snapshot("one")
    await two.put_toolset("one", Toolset())
    assert await one.session("one") is not None


async def test_a_write_whose_answer_was_lost_is_applied_once(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is cut after the server has taken the command: the client library sends it again."""
    one, two = stores
    script = one.link.script

    async def repeated(*arguments: Any, **named: Any) -> Any:
        await script(*arguments, **named)
        return await script(*arguments, **named)

    monkeypatch.setattr(one.link, "script", repeated)
    session = await one.put_policy("one", Policy(), if_version=0)
    assert await one.put_toolset("one", Toolset(), if_version=session.version) == await two.session("one")
    call = await save(one, "t1", keys=[b"key"], call=WORKERS)
    await one.save_plain("one", [b"plain"], b"chain")
    assert await one.mark_broken_off("one", "t1")
    assert await one.claim("one", WEATHER, lease=60.0, worker="w") is not None
    assert (await one.answer("one", call.call_id, result=1))[1]
    await one.add_response(Response(response_id="r1", session="one", document={}, created_at=1.0))
    await one.delete_response("one", "r1")
    expected = ["session.updated", "tools.updated", "turn.created", "call.created", "turn.updated"]
    assert await types(two, "one") == [*expected, "call.updated", "call.updated"]
    assert (await two.look_up("one", keys=[b"plain"])).plain == {b"plain": b"chain"}
    assert await one.delete_session("one") is True
    assert await types(two, "one") == ["session.deleted"]


async def test_a_take_over_whose_reply_was_lost_names_what_it_may_have_taken(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    await save(one, "t1", created_at=one.times().wall, request_key=b"key", proxy_id="p0")
    response = Response(response_id="r1", session="one", document={}, created_at=1.0)
    await one.add_response(response, undelivered=UndeliveredAnswer(key=b"key", proxy_id="p0", answer={}))
    await one.mark_broken_off("one", "t1")
    await one.mark_not_handed_over("one", "r1")
    apply = one.apply

    async def cut(tx: Any) -> Any:
        await apply(tx)
        raise OutcomeUnknown("cut")

    with monkeypatch.context() as patch:
        patch.setattr(one, "apply", cut)
        with pytest.raises(TakeOverUnknown) as turn:
            await one.take_over("one", b"key", window=60.0, proxy_id="p1")
        with pytest.raises(TakeOverUnknown) as answer:
            await one.take_answer("one", b"key", window=60.0, proxy_id="p1")
    assert (turn.value.taken, answer.value.taken) == ("t1", "r1")
    assert await two.take_over("one", b"key", window=60.0, proxy_id="p2") is None
    await one.mark_broken_off("one", turn.value.taken, proxy_id="p1")
    await one.mark_not_handed_over("one", answer.value.taken)
    assert await two.take_over("one", b"key", window=60.0, proxy_id="p2") is not None
    assert await two.take_answer("one", b"key", window=60.0, proxy_id="p2") is not None


@pytest.mark.parametrize("kind", ["turn", "answer"])
@pytest.mark.parametrize(
    ("end", "is_taken"), [("broken off", True), ("renewed", False), ("delivered", False), ("its lease", True)]
)
async def test_who_repeats_a_request_waits_for_news_of_the_proxy_that_had_it(
    stores: Stores, kind: str, end: str, is_taken: bool
) -> None:
    one, two = stores
    await one.hold("p1", 60.0 if end != "its lease" else 1.0)
    if kind == "turn":
        await one.save_turn(a_turn("t1", "one", request_key=b"key", proxy_id="p1", created_at=one.times().wall))
        broken_off, delivered = one.mark_broken_off, one.mark_delivered
        take: Callable[..., Coroutine[Any, Any, object]] = two.take_over
    else:
        response = Response(response_id="t1", session="one", document={}, created_at=one.times().wall)
        await one.add_response(response, undelivered=UndeliveredAnswer(b"key", "p1", None))
        broken_off, delivered = one.mark_not_handed_over, one.mark_handed_over  # type: ignore[assignment]
        take = two.take_answer
    taking = asyncio.ensure_future(take("one", b"key", window=60.0, proxy_id="p2"))
    await asyncio.wait({taking}, timeout=0.3)
    assert not taking.done()
    match end:
        case "broken off":
            await broken_off("one", "t1")
        case "delivered":
            await delivered("one", "t1")
        case "renewed":
            await one.hold("p1", 60.0)
    async with asyncio.timeout(10):
        assert (await taking is not None) == is_taken


async def test_sessions_without_open_calls_cost_the_settling_of_lost_calls_nothing(stores: Stores) -> None:
    one, two = stores
    for number in range(30):
        call = await save(one, f"t{number}", f"s{number}", call={"owner": "loop", "proxy_id": "p"})
        if number:
            await one.answer(call.session, call.call_id, result=1)
    await two.hold("p", 60.0)
    now = two.times().wall
    two.clock = lambda: now + 10
    assert await two.settle_lost() == []
    before = two.link.round_trips
    assert await two.settle_lost() == []
    assert two.link.round_trips - before <= 2
    two.clock = lambda: now + 100
    assert [call.call_id for call in await two.settle_lost()] == ["c-t0"]
