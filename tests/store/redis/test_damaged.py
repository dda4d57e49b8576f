"""Damaged values in the server: each hides itself and nothing else, and keeps nothing from expiring."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from store.backends.redis import RedisStore
from store.base import StoreError, StoreUnavailable
from store.factory import open_url
from store.models import CachedTools, Policy, UndeliveredAnswer
from tests.store import servers
from tests.store.records import WORKERS, save
from tests.store.response_records import a_part, a_response

pytestmark = pytest.mark.e2e

DAMAGED = [
    b"",
    b"\xff\xfe",
    b"12345678",
    b"12345678\0\1",
    b"12345678\0\1\0\5ab",
    b"12345678\xff\xff\xff\xff",
    b"12345678\0\1\0\x099999999999",
    b"12345678\0\0\x78\x58damaged",
    b"12345678\0\0[1]",
    b"12345678\0\3\0\1a\0\1b\0\1c{}",
]
"""Values in place of a record."""

TTL = 1000.0


@pytest.fixture
async def store() -> AsyncIterator[RedisStore]:
    opened = open_url(servers.new_url(), ttl=TTL)
    assert isinstance(opened, RedisStore)
    await opened.open()
    for proxy in ("p1", "gone"):
        await opened.hold(proxy, 60.0)
    await opened.put_policy("one", Policy())
    now = opened.times().wall
    for name in ("t1", "t2"):
        turn: Any = {"request_key": b"request", "proxy_id": "gone", "created_at": now}
        await save(opened, name, keys=[b"key"], call=WORKERS | {"created_at": now}, **turn)
        await opened.save_plain("one", [name.encode()], b"chain")
        response = a_response(f"r-{name}", conversation=name, calls={f"g-{name}": a_part()}, tools={"tools": []})
        await opened.add_response(response, undelivered=UndeliveredAnswer(b"answer", "gone", {"of": name}))
        await opened.add_response(a_response(f"next-{name}", f"r-{name}", conversation=name), head=f"r-{name}")
        await opened.put_cached_tools(
            CachedTools(session="one", cached_content=name, names={}, created_at=opened.times().wall)
        )
    await opened.drop("gone")
    yield opened
    await opened.close()


@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("turn", "t1"),
        ("call", "c-t1"),
        ("plain", "t1"),
        ("response", "r-t1"),
        ("node", "r-t1"),
        ("document", "r-t1"),
        ("given", "g-t1"),
        ("unsent", "r-t1"),
        ("cached", "t1"),
        ("lock", "t1"),
        ("proxies", "p2"),
    ],
)
async def test_a_damaged_value_hides_no_other_and_everything_expires(
    store: RedisStore, name: str, field: str, damaged: bytes
) -> None:
    key = store.keys.proxies if name == "proxies" else store.keys.of("one", name)
    await store.link.run(("HSET", key, field, damaged))
    store.forget()
    await _others_can_be_used(store)
    await _this_one_fails_alone(store)
    now = store.times().wall
    store.clock = lambda: now + 3 * TTL + 4000
    store._clocks = store._new_clocks()
    while await store.expire():
        pass
    names = "turn", "turns", "call", "calls", "response", "node", "document", "given", "unsent", "cached", "thread"
    left = await store.link.run(*(("EXISTS", store.keys.of("one", name)) for name in names))
    only_it_knew = {"turn": {"call", "calls"}, "node": {"given"}, "given": {"given"}}.get(
        name, set()
    )  # Redis deletes these some day
    assert {name for name, is_left in zip(names, left, strict=True) if is_left} <= only_it_knew
    assert (await store.link.run(("HEXISTS", store.keys.of("one", "plain"), "t1")))[0] == 0
    assert (await store.link.run(("XLEN", store.keys.of("one", "events"))))[0] == 0
    assert (await store.link.run(("HEXISTS", store.keys.proxies, "p2")))[0] == 0


async def _others_can_be_used(store: RedisStore) -> None:
    assert "t2" in [turn.turn_id for turn in (await store.turns("one")).items]
    assert "c-t2" in [call.call_id for call in (await store.calls(session="one")).items]
    found = await store.look_up("one", turn_ids=["t1"], keys=[b"key", b"t1", b"t2"])
    assert "t2" in found.by_key[b"key"]
    assert found.plain[b"t2"] == b"chain"
    assert await store.given_calls("one", ["g-t1", "g-t2"]) | {"g-t1": None} != {"g-t1": None}
    assert [one.response_id for one in await store.history("one", "next-t2")] == ["r-t2", "next-t2"]
    assert (await store.response("one", "r-t2")).tools == {"tools": []}
    assert await store.cached_tools("one", "t2") is not None
    answers = [await store.take_answer("one", b"answer", window=1e6, proxy_id="p1") for _ in range(2)]
    assert ("r-t2", {"of": "t2"}) in answers
    turns = [await store.take_over("one", b"request", window=1e6, proxy_id="p1") for _ in range(2)]
    assert "t2" in [taken[0].turn_id for taken in turns if taken is not None]
    await store.settle_lost()
    assert await store.events(after=None, limit=1000)


async def _this_one_fails_alone(store: RedisStore) -> None:
    operations: list[Callable[[], object]] = [
        lambda: store.mark_delivered("one", "t1"),
        lambda: store.mark_broken_off("one", "t1"),
        lambda: store.answer("one", "c-t1", result=1),
        lambda: store.response("one", "r-t1"),
        lambda: store.history("one", "next-t1"),
        lambda: store.mark_not_handed_over("one", "r-t1"),
        lambda: store.mark_handed_over("one", "r-t1"),
        lambda: store.add_response(a_response("later", "r-t1")),
        lambda: store.delete_response("one", "r-t1"),
        lambda: store.cached_tools("one", "t1"),
        lambda: store.lock_conversation("one", "t1", holder="h", proxy_id="p1"),
        lambda: store.drop("p2"),
    ]
    for operation in operations:
        try:
            await operation()  # type: ignore[misc]
        except StoreUnavailable:
            raise
        except StoreError:
            pass


@pytest.mark.parametrize(
    "fields",
    [
        ("x", "y"),
        ("t", "call.updated", "d", "{}"),
        ("t", "call.updated", "d", "{}", "c", "x"),
        ("t", b"\xff", "d", "{}", "c", "1"),
        ("t", "call.updated", "c", "1"),
    ],
)
async def test_a_damaged_event_hides_no_other_and_is_logged_once(
    store: RedisStore, caplog: pytest.LogCaptureFixture, fields: tuple[str | bytes, ...]
) -> None:
    start = await store.last_event_id()
    number = int(start.rpartition("-")[2]) + 1
    notice = ("s", "one", "n", 1, "c", int(store.times().wall), "w", '{"calls":[],"changed":false}')
    await store.link.run(
        ("XADD", store.keys.of("one", "events"), number, *fields),
        ("XADD", store.keys.notices, number, *notice),
    )
    await store.put_policy("one", Policy())
    for session in ("one", None, "one"):
        assert [event.type for event in await store.events(after=start, session=session)] == ["session.updated"]
        followed = await store.follow(session, start, 10.0, limit=1)
        assert [event.type for event in followed] == ["session.updated"]
    logged = [record for record in caplog.records if "damaged" in record.getMessage()]
    assert len(logged) == 1
    now = store.times().wall
    store.clock = lambda: now + 2 * TTL
    store._clocks = store._new_clocks()
    while await store.expire():
        pass
    assert (await store.link.run(("XLEN", store.keys.of("one", "events")))) == [0]


async def test_a_damaged_notice_keeps_nothing_from_expiring(store: RedisStore) -> None:
    await store.link.run(("XADD", store.keys.notices, "*", "x", "y"), ("XADD", store.keys.notices, "*", "c", "x"))
    now = store.times().wall
    store.clock = lambda: now + 2 * TTL
    store._clocks = store._new_clocks()
    assert await store.expire()
    (left,) = await store.link.run(("XRANGE", store.keys.notices, "-", "+"))
    assert all(float(fields[b"c"]) == pytest.approx(now + 2 * TTL, abs=60) for _, fields in left)
