"""Moving everything from one store to another."""

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from addon.graft.exchange import Forward
from addon.graft.grafter import Grafter
from addon.metrics import Metrics
from addon.settings import Settings
from addon.surfaces import match_path
from bench import seed
from bench.measure import PATH
from store import moving
from store.backends import _redis_exports, _sqlite_exports
from store.backends.redis import RedisStore
from store.base import Store, StoreError
from store.exports import KINDS
from store.factory import open_url
from store.models import CachedTools, Policy, Session, Toolset, UndeliveredAnswer
from tests.store import servers
from tests.store.conftest import SCHEMES, URLS
from tests.store.records import WORKERS, a_turn, save
from tests.store.response_records import a_part, a_response, chat

TTL = 1000.0
OLD = 5_000.0


async def fill(store: Store, now: float) -> None:
    """Records of every kind, some of them expired."""
    await store.put_toolset("one", Toolset(declarations=[{"name": "f"}]))
    await store.put_policy("two", Policy(delivery="loop"))
    await save(store, "t1", keys=[b"k1", b"k2"], created_at=now, user_key=b"u", chain=b"c")
    await save(store, "t2", "two", keys=[b"k1"], created_at=now - 1, delivered=True, bound=True)
    await save(store, "t3", keys=[b"k3"], created_at=now, call=WORKERS, request_key=b"r")
    await save(store, "old", keys=[b"k9"], created_at=now - OLD)
    await store.save_turn(a_turn("t1", created_at=now, visible=[{"text": "more"}], user_key=b"u"), (), [b"k4"])
    claimed = await store.claim("one", ["get_weather"], lease=60, worker="w")
    assert claimed is not None
    await store.answer(
        "one", "c-t1", result="see", parts=[{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}]
    )
    head = b"a" * 6
    await store.save_plain("one", [head + b"1" * 10, head + b"2" * 16, head + b"3" * 16], b"chain")
    await store.save_plain("one", [b"b" * 6 + b"1" * 10], b"first")
    await store.save_plain("one", [b"b" * 6 + b"4" * 10], b"other")
    await store.save_plain("one", [b"b" * 6 + b"1" * 10], b"second")
    await store.put_cached_tools(CachedTools(session="one", cached_content="x", names={"f": "g"}, created_at=now))
    await store.put_cached_tools(CachedTools(session="one", cached_content="y", names={}, created_at=now - OLD))
    await chat(store, "r1", "r2", name="talk", created_at=now, tools={"a": 1}, calls={"c": a_part()})
    answer = UndeliveredAnswer(b"key", "p", {"x": 1})
    await store.add_response(a_response("r3", "r2", conversation="talk"), head="r2", undelivered=answer)
    await store.add_response(a_response("side", "r3"))
    await store.take_back("one", "r3", head="r2")  # its document is gone, and another response needs the rest
    await store.add_response(a_response("r4", "r2"), undelivered=answer)
    await store.delete_response("one", "r1")


@pytest.fixture(params=SCHEMES)
async def other(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, moving.Clock]]:
    """An empty store of each backend, with its clock."""
    clock = moving.Clock()
    store = open_url(URLS[request.param](tmp_path), ttl=TTL, clock=clock)
    await store.open()
    yield store, clock
    await store.close()


async def memory(clock: Callable[[], float]) -> Store:
    store = open_url("memory://", ttl=TTL, clock=clock)
    await store.open()
    return store


async def test_each_store_gives_and_takes_every_record(
    other: tuple[Store, moving.Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend in (_redis_exports, _sqlite_exports):
        monkeypatch.setattr(backend, "PAGE", 2)
    store, clock = other
    first_clock, last_clock = moving.Clock(), moving.Clock()
    first, last = await memory(first_clock), await memory(last_clock)
    now = clock()
    await fill(first, now)

    def state() -> moving.State:
        return moving.State("first", since=now - TTL)

    there = await moving.copy(first, store, clock, state(), lambda kind, count: None)
    back = await moving.copy(store, last, last_clock, state(), lambda kind, count: None)
    assert there.bad == back.bad == {kind: [] for kind in KINDS}
    assert there.wrong == back.wrong == []
    assert there.source == back.target
    assert {kind: one.count for kind, one in there.source.items()} == {
        "sessions": 2,
        "turns": 3,
        "cached tools": 1,
        "notes": 5,
        "responses": 5,
    }
    assert await store.conversation("one", "talk") == await first.conversation("one", "talk") == "r2"
    assert (await store.response("one", "r2")).tools == {"a": 1}
    assert await store.take_answer("one", b"key", window=60, proxy_id="new") == ("r4", {"x": 1})
    assert not await store.expire()
    before = await first.session("one")
    assert before is not None
    assert await store.session("one") == before
    changed = await store.put_policy("one", Policy(), if_version=before.version)
    assert changed.version > before.version
    assert 0 < (await store.lease_left("one", "c-t3") or 0) <= 60
    moved = await store.call("one", "c-t1")
    assert moved.turn_id == "t1"
    assert moved.parts == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}]


async def test_versions_are_not_given_again(other: tuple[Store, moving.Clock]) -> None:
    store, _ = other
    await store.restore_session(Session(name="one", version=10**15, created_at=1, updated_at=1))
    assert (await store.put_policy("one", Policy())).version > 10**15
    assert (await store.put_policy("two", Policy())).version > 10**15


@pytest.mark.e2e
async def test_a_store_that_real_requests_filled_works_after_two_moves(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / 'a.db'}", servers.new_url(), f"sqlite:///{tmp_path / 'b.db'}"]
    store = open_url(urls[0], ttl=TTL)
    await store.open()
    await fill(store, store.clock())
    captured = await seed.capture(store, "shop", 3, answered=True)
    secret, epoch = store.secret, store.epoch
    await store.close()
    for source, target in itertools.pairwise(urls):
        done = await moving.move(source, target, ttl=TTL)
        assert not done.wrong
        assert not any(done.bad.values())
        assert done.target["turns"].count == 6
    with pytest.raises(StoreError, match="not empty"):
        await moving.move(urls[0], urls[2], ttl=TTL)
    store = open_url(urls[2], ttl=TTL)
    await store.open()
    assert store.secret == secret
    assert store.epoch != epoch
    assert (await store.call("shop", captured[0].call_id)).result == seed.RESULT
    body = await seed_request(store, captured[0].text)
    assert b"functionResponse" in body
    assert b"celsius" in body
    await store.close()


async def seed_request(store: Store, text: str) -> bytes:
    """What the model gets if a chat goes on after this answer to its first question."""
    grafter = Grafter(store, Settings(session="shop"), Metrics())
    config, target = await grafter.session_config("shop"), match_path("POST", PATH)
    assert config is not None
    assert target is not None
    question = {"role": "user", "parts": [{"text": "What about city 0 of shop?"}]}
    contents = [question, {"role": "model", "parts": [{"text": text}]}, {"role": "user", "parts": [{"text": "And?"}]}]
    outcome = await grafter.request(target, config, msgspec.json.encode({"contents": contents}))
    assert isinstance(outcome, Forward)
    assert outcome.body is not None
    return outcome.body


@pytest.mark.e2e
@pytest.mark.parametrize("at", range(1, 12, 2))
async def test_an_interrupted_move_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    first, second = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    if at % 4 == 1:
        second = servers.new_url()
    store = open_url(first, ttl=TTL)
    await store.open()
    await fill(store, store.clock())
    await store.close()
    restore, count = moving._restore, itertools.count(1)

    async def interrupted(*arguments: object) -> None:
        if next(count) == at:
            raise KeyboardInterrupt
        await restore(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(moving, "_restore", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await moving.move(first, second, ttl=TTL)
    with pytest.raises(StoreError, match="was not finished"):
        await moving.move(second, f"sqlite:///{tmp_path / 'c.db'}", ttl=TTL)
    other = open_url(f"sqlite:///{tmp_path / 'd.db'}", ttl=TTL)
    await other.open()
    await other.close()
    with pytest.raises(StoreError, match="unfinished move from"):
        await moving.move(f"sqlite:///{tmp_path / 'd.db'}", second, ttl=TTL)
    done = await moving.move(first, second, ttl=TTL)
    assert not done.wrong
    assert not any(done.bad.values())
    assert done.target["responses"].count == 5


@pytest.mark.e2e
async def test_a_move_from_a_store_in_use_is_refused(tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path / 'a.db'}", servers.new_url()
    store, shared = open_url(first, ttl=TTL), open_url(second, ttl=TTL)
    await store.open()
    await shared.open()
    with pytest.raises(StoreError, match="another toolgraft uses it"):
        await moving.move(first, second, ttl=TTL)
    await store.close()
    await shared.hold("p", 60)
    for source, target in ((second, first), (first, second)):
        with pytest.raises(StoreError, match="in use by 1 running"):
            await moving.move(source, target, ttl=TTL)
    await shared.close()


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("sqlite:////a.db", "sqlite:////./a.db", "is both"),
        ("sqlite:////nothing/a.db", "sqlite:////b.db", "no such file"),
        ("memory://", "sqlite:////b.db", "in memory"),
        ("sqlite:////a.db", "memory://", "in memory"),
        ("redis://u:x@h:1/0", "redis://h:1/0", "is both"),
        ("mongo://a", "redis://h:1/0", "scheme is not one of"),
    ],
)
async def test_a_move_that_makes_no_sense_is_refused(source: str, target: str, why: str) -> None:
    with pytest.raises(StoreError, match=why) as refused:
        await moving.move(source, target, ttl=TTL)
    assert "x@" not in str(refused.value)


async def test_a_record_that_cannot_be_read_is_named_and_stops_nothing(tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    store = open_url(first, ttl=TTL)
    await store.open()
    await fill(store, store.clock())
    store._db.execute("UPDATE turn SET record = '{' WHERE turn_id = 't1'")  # type: ignore[attr-defined]
    store._db.execute("UPDATE response SET record = '{' WHERE response_id = 'r2'")  # type: ignore[attr-defined]
    await store.close()
    done = await moving.move(first, second, ttl=TTL)
    assert done.bad["turns"] == ["t1"]
    assert done.bad["responses"] == ["r2", "r3", "side", "r4"]
    assert not done.wrong
    assert done.target["turns"].count == 2


@pytest.mark.e2e
async def test_damaged_values_in_redis_are_named_too() -> None:
    first, second = servers.new_url(), servers.new_url()
    store = open_url(first, ttl=TTL)
    await store.open()
    await fill(store, store.clock())
    assert isinstance(store, RedisStore)
    damaged = (("turn", "t1"), ("call", "c-t3"), ("cached", "x"), ("response", "r4"), ("plain", "p"))
    await store.link.run(*(("HSET", store.keys.of("one", name), field, b"{") for name, field in damaged))
    await store.close()
    done = await moving.move(first, second, ttl=TTL)
    assert done.bad == {
        "sessions": [],
        "turns": ["t1", "c-t3"],
        "cached tools": ["x"],
        "notes": [b"p".hex()],
        "responses": ["r4"],
    }
    assert not done.wrong
    assert done.target["turns"].count == 2
