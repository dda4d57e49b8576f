"""The store's contract about the ledger, over every backend."""

import pytest

from store.base import (
    MATCHES,
    Store,
)
from store.models import (
    Call,
    Policy,
    Slot,
    Toolset,
)
from tests.store.conftest import TTL, Clock
from tests.store.records import a_call, a_turn, revision_of, save, types


async def test_a_turn_comes_back_as_it_was_saved(store: Store) -> None:
    args = {"large": 2**80, "float": 1.0, "int": 1, "small": 5e-324, "text": "é😀\x00", "deep": [{"a": None}]}
    call = a_call(args=args, gemini_id="g1", model="m", surface="s", round=2, index=1)
    turn = a_turn("t1", "one", call, request_key=bytes(range(256)), usage=[{"totalTokenCount": 3}], delivery="loop")
    await store.save_turn(turn, [call], [b"\xff\x00"])
    found = await store.look_up("one", keys=[b"\xff\x00"])
    assert found.by_key == {b"\xff\x00": ["t1"]}
    assert found.turns == {"t1": turn}
    assert found.calls == {"c1": call}
    assert await store.call("one", "c1") == call
    read = (await store.call("one", "c1")).args
    assert [type(read[name]) for name in ("large", "float", "int")] == [int, float, int]
    assert isinstance(found.turns["t1"].steps[0].slots[0], Slot)
    assert (await store.turns("one")).items == [turn]


async def test_later_changes_of_a_caller_s_documents_change_nothing_in_the_store(store: Store) -> None:
    args = {"city": ["Oslo"]}
    toolset = Toolset(declarations=[{"name": "f"}])
    call = a_call(args=args)
    await store.put_toolset("one", toolset)
    await store.save_turn(a_turn("t1", "one", call), [call])
    args["city"].append("Bergen")
    toolset.declarations[0]["name"] = "g"
    assert (await store.call("one", "c1")).args == {"city": ["Oslo"]}
    session = await store.session("one")
    assert session
    assert session.toolset == Toolset(declarations=[{"name": "f"}])


async def test_saving_again_replaces_the_turn_but_for_when_it_was_made_and_broke_off(store: Store) -> None:
    await save(store, "t1", keys=[b"a"])
    assert await store.mark_broken_off("one", "t1")
    broke_off = (await store.look_up("one", turn_ids=["t1"])).turns["t1"].broke_off
    call = a_call("c-t1")
    repeated = a_turn("t1", "one", call, created_at=2e6, delivered=True, visible=[{"text": "new"}])
    await store.save_turn(repeated, [], [b"c"])
    found = await store.look_up("one", keys=[b"a", b"c"])
    assert found.by_key == {b"a": ["t1"], b"c": ["t1"]}, "keys are added"
    assert found.turns["t1"] == repeated.model_copy(update={"created_at": 1e6, "broke_off": broke_off})
    assert found.calls.keys() == {"c-t1"}


async def test_saving_again_leaves_the_calls_alone_and_adds_new_ones(store: Store) -> None:
    first, second = a_call("c1"), a_call("c2", index=1)
    await store.save_turn(a_turn("t1", "one", first), [first])
    answered, _ = await store.answer("one", "c1", result={"temp": 3})
    await store.save_turn(a_turn("t1", "one", first, second), [first, second])
    found = await store.look_up("one", turn_ids=["t1"])
    assert found.calls == {"c1": answered, "c2": second}
    assert await types(store) == ["turn.created", "call.created", "call.updated", "turn.updated", "call.created"]


async def test_saving_leaves_the_records_in_the_events(store: Store) -> None:
    call = a_call()
    turn = a_turn("t1", "one", call, pair=b"\xff")
    await store.save_turn(turn, [call])
    created, called = await store.events(after=None)
    assert (created.type, created.data) == ("turn.created", turn.model_dump(mode="json"))
    assert created.data["pair"] == "ff"
    assert (called.type, called.data) == ("call.created", call.model_dump(mode="json"))


@pytest.mark.parametrize("call", [a_call(turn_id="t2"), a_call(session="two")], ids=["turn", "session"])
async def test_a_call_of_another_turn_or_session_is_refused_and_nothing_is_written(store: Store, call: Call) -> None:
    with pytest.raises(ValueError, match="c1 is not of turn t1"):
        await store.save_turn(a_turn(), [call])
    assert await store.events(after=None) == []


async def test_a_value_that_json_cannot_hold_is_refused_and_nothing_is_written(store: Store) -> None:
    good, bad = a_call("c1"), a_call("c2", args={"text": "\ud800"})
    with pytest.raises(ValueError, match="surrogates"):
        await store.save_turn(a_turn("t1", "one", good, bad), [good, bad], [b"key"])
    assert (await store.look_up("one", turn_ids=["t1"], keys=[b"key"])) == await store.look_up("one")
    assert (await store.calls()).items == []
    assert await store.events(after=None) == []
    await store.save_turn(a_turn("t1", "one", good), [good])


async def test_two_sessions_may_use_the_same_turn_id_and_key(store: Store) -> None:
    for session in ("one", "two"):
        call = a_call(f"c-{session}", "t", session)
        await store.save_turn(a_turn("t", session, call, model=session), [call], [b"key"])
    for session in ("one", "two"):
        found = await store.look_up(session, turn_ids=["t"], keys=[b"key"])
        assert found.by_key == {b"key": ["t"]}
        assert found.turns["t"].model == session
        assert found.calls.keys() == {f"c-{session}"}


async def test_a_call_id_of_another_session_is_left_alone(store: Store) -> None:
    call = await save(store, "t1", "one")
    stolen = a_call(call.call_id, "t2", "two", name="other")
    await store.save_turn(a_turn("t2", "two", stolen), [stolen])
    assert await store.call(call.session, call.call_id) == call
    assert (await store.look_up("two", turn_ids=["t2"])).calls == {}


async def test_look_up_finds_by_id_and_by_key_and_nothing_else(store: Store) -> None:
    for number in range(5):
        await save(store, f"t{number}", keys=[b"key%d" % number])
    found = await store.look_up("one", turn_ids=["t0", "none"], keys=[b"key1", b"none"])
    assert found.by_key == {b"key1": ["t1"]}
    assert found.turns.keys() == {"t0", "t1"}
    assert found.calls.keys() == {"c-t0", "c-t1"}
    assert (await store.look_up("two", turn_ids=["t0"], keys=[b"key1"])).turns == {}
    empty = await store.look_up("one")
    assert (empty.by_key, empty.turns, empty.calls) == ({}, {}, {})


async def test_look_up_takes_a_whole_history_at_once(store: Store) -> None:
    keys = [b"%032d" % number for number in range(9000)]
    for number in (0, 17, 8999):
        await save(store, f"t{number}", keys=[keys[number]])
    found = await store.look_up("one", keys=keys, turn_ids=[f"t{number}" for number in range(300)])
    assert found.by_key == {keys[0]: ["t0"], keys[17]: ["t17"], keys[8999]: ["t8999"]}
    assert found.calls.keys() == {"c-t0", "c-t17", "c-t8999"}


async def test_delivered_turns_of_equal_keys_come_first_and_then_the_newest(store: Store) -> None:
    for turn_id, delivered in {"t1": True, "t2": False, "t3": True, "t4": False}.items():
        await save(store, turn_id, keys=[b"key"], delivered=delivered, created_at=1e6 - int(turn_id[1]))
    assert (await store.look_up("one", keys=[b"key"])).by_key == {b"key": ["t3", "t1", "t4", "t2"]}
    await save(store, "t2", delivered=True)
    assert (await store.look_up("one", keys=[b"key"])).by_key == {b"key": ["t3", "t2", "t1", "t4"]}


async def test_the_best_of_very_many_equal_keys_are_given(store: Store) -> None:
    for number in range(MATCHES + 4):
        await save(store, f"t{number}", keys=[b"key"], delivered=number == 0)
    found = await store.look_up("one", keys=[b"key"])
    newest = [f"t{number}" for number in range(MATCHES + 3, 4, -1)]
    assert found.by_key == {b"key": ["t0", *newest]}
    assert found.turns.keys() == {"t0", *newest}


async def test_the_revision_changes_whenever_look_up_could_answer_differently(store: Store) -> None:
    assert await revision_of(store) == 0
    await store.put_toolset("one", Toolset())
    assert await revision_of(store) == 0
    revisions = [0]

    async def changed() -> None:
        revision = await revision_of(store)
        assert revision is not None
        assert revision not in revisions
        assert await revision_of(store) == revision, "asking changes nothing"
        revisions.append(revision)

    call = await save(store, "t1")
    await changed()
    await save(store, "t1", keys=[b"key"])
    await changed()
    await store.answer(call.session, call.call_id, result=1)
    await changed()
    await save(store, "t2", "two")
    await store.answer("two", "c-t2", result=1)
    await store.put_policy("one", Policy())
    await store.look_up("one", turn_ids=["t1"])
    assert await revision_of(store) == revisions[-1], "nothing of this changed the ledger of one"
    await store.delete_session("one")
    assert await revision_of(store) == 0
    await save(store, "t1")
    await changed()
    assert await revision_of(store, "two") != 0


async def test_the_revision_changes_as_turns_expire(store: Store, clock: Clock) -> None:
    await save(store, "t1", created_at=clock.now)
    await save(store, "t2", created_at=clock.now + 10)
    before = await revision_of(store)
    clock.now += TTL + 1
    await store.expire()
    assert await revision_of(store) not in (0, before)
    clock.now += 10
    await store.expire()
    assert await revision_of(store) == 0


async def test_turns_without_calls_are_known_by_their_keys_alone(store: Store) -> None:
    await store.save_plain("one", [b"own", b"chain"], b"before")
    await save(store, "t1", keys=[b"chain", b"key"])
    found = await store.look_up("one", keys=[b"own", b"chain", b"key", b"none"])
    assert found.plain == {b"own": b"before", b"chain": b""}
    assert found.by_key == {b"chain": ["t1"], b"key": ["t1"]}
    assert (await store.look_up("two", keys=[b"own"])).plain == {}
    assert await types(store, "one") == ["turn.created", "call.created"]
    await store.save_plain("one", [b"own"], b"before")
    assert (await store.look_up("one", keys=[b"own"])).plain == {b"own": b"before"}
    for chain in (b"other", b"before"):
        await store.save_plain("one", [b"own"], chain)
        assert (await store.look_up("one", keys=[b"own"])).plain == {b"own": b""}
    assert await store.delete_session("one")
    assert (await store.look_up("one", keys=[b"own"])).plain == {}
    await store.save_plain("one", [b"own"])
    assert await store.delete_session("one"), "that is something"


async def test_turns_without_calls_that_begin_alike_are_told_apart(store: Store) -> None:
    def keys(turn: int, *more: bytes) -> list[bytes]:
        return [b"headed-same-word", *(b"headed-%010d-%04d" % (turn, number) for number in range(3)), *more]

    async def known(*turns: int) -> dict[bytes, bytes]:
        asked = [key for turn in turns for key in keys(turn, b"mark %011d" % turn)]
        return (await store.look_up("one", keys=[*asked, b"headed-none-else"])).plain

    first, mark = dict.fromkeys(keys(1), b""), b"mark %011d"
    for _ in range(2):  # told again, it is the same
        await store.save_plain("one", keys(1, mark % 1), b"chain of 1")
        assert await known(1) == {**first, b"headed-same-word": b"chain of 1", mark % 1: b""}
    assert (await known(2)).keys() == {b"headed-same-word"}
    await store.save_plain("one", keys(2), b"chain of 2")
    assert await known(1, 2, 3) == {**first, **dict.fromkeys(keys(2), b""), mark % 1: b""}
    await store.save_plain("one", keys(3))
    assert await known(1, 2, 3) == dict.fromkeys([*keys(1), *keys(2), *keys(3), mark % 1], b"")
    assert (await store.look_up("two", keys=keys(1))).plain == {}


async def test_notes_outlive_the_turn_that_began_alike(store: Store, clock: Clock) -> None:
    one, other, third = b"headed-0123456-1", b"headed-0123456-789-no2", b"headed-0123456-789-no3"
    await save(store, "t1", created_at=clock.now, keys=[one, other])
    clock.now += TTL + 1
    await store.expire()
    await store.save_plain("one", [one, third], b"chain")
    found = await store.look_up("one", keys=[one, other, third])
    assert found.plain == dict.fromkeys([one, other, third], b"")


async def test_whether_a_key_is_known_can_be_asked_alone(store: Store) -> None:
    keys = [b"%032d" % number for number in range(9000)]
    for number in (0, 17, 8999):
        await save(store, f"t{number}", keys=[keys[number]])
    await store.save_plain("one", [keys[3]])
    found = await store.look_up("one", known=keys)
    assert found.known == {keys[0], keys[17], keys[8999]}
    assert (found.by_key, found.turns, found.plain) == ({}, {}, {})
    assert (await store.look_up("two", known=keys)).known == set()


async def test_a_key_of_more_turns_than_are_given_is_crowded(store: Store) -> None:
    for number in range(MATCHES):
        await save(store, f"t{number}", keys=[b"key"])
    assert (await store.look_up("one", keys=[b"key"])).crowded == set()
    await save(store, "more", keys=[b"key"])
    found = await store.look_up("one", keys=[b"key", b"none"])
    assert found.crowded == {b"key"}
    assert len(found.by_key[b"key"]) == MATCHES
    found = await store.look_up("one", keys=[b"key"], matches=MATCHES + 1)
    assert found.crowded == set()
    assert len(found.by_key[b"key"]) == len(found.turns) == MATCHES + 1


async def test_keys_are_known_for_as_long_again_when_their_turns_have_expired(store: Store, clock: Clock) -> None:
    await save(store, "t1", created_at=clock.now, keys=[b"turn"])
    await store.save_plain("one", [b"plain"], b"chain")
    clock.now += TTL + 1
    await store.expire()
    found = await store.look_up("one", keys=[b"turn", b"plain"])
    assert (found.turns, found.plain) == ({}, {b"turn": b"", b"plain": b"chain"})
    clock.now += TTL - 2
    await store.expire()
    assert (await store.look_up("one", keys=[b"turn", b"plain"])).plain.keys() == {b"turn", b"plain"}
    clock.now += 2 * TTL + 7200
    await store.expire()
    assert (await store.look_up("one", keys=[b"turn", b"plain"])).plain == {}
    assert not await store.delete_session("one"), "nothing is left"


async def test_changes_name_the_turns_and_keys_of_writes(store: Store) -> None:

    def touched(since: int | None) -> tuple[set[str], set[bytes]] | None:
        assert since is not None
        changes = store.changes("one", since)
        return None if changes is None else (changes.turn_ids, changes.keys - {b""})

    await store.save_plain("one", [b"before"])
    assert await revision_of(store) == 0, "there are no turns"
    call = await save(store, "t1", keys=[b"key"])
    first = await revision_of(store)
    assert touched(first) == (set(), set())
    await save(store, "t2", keys=[b"a", b"b"])
    await save(store, "t2", "two", keys=[b"elsewhere"])
    await store.save_plain("one", [b"plain"])
    second = await revision_of(store)
    assert touched(first) == ({"t2"}, {b"a", b"b", b"plain"})
    await store.answer("one", call.call_id, result=1)
    assert touched(second) == ({"t1"}, set())
    assert touched(first) == ({"t1", "t2"}, {b"a", b"b", b"plain"})
    await save(store, "t3", keys=[b"asked"])
    assert touched(await revision_of(store)) == (set(), set())
    assert (touched(second) or (set(), set()))[1] == {b"asked"}
    await store.delete_session("one")
    await save(store, "t4")
    assert touched(second) is None, "nobody knows"


async def test_more_writes_than_are_remembered_concern_whatever_there_is(store: Store) -> None:
    await save(store, "t1")
    revision = await revision_of(store)
    assert revision is not None
    for number in range(3000):
        await store.save_plain("one", [b"%d" % number])
    assert store.changes("one", revision) is None
    latest = await revision_of(store)
    assert latest is not None
    await store.save_plain("one", [b"last"])
    changes = store.changes("one", latest)
    assert changes is not None
    assert changes.keys == {b"last"}


async def test_turns_are_listed_oldest_first_in_pages_that_hold_still(store: Store) -> None:
    for number in range(4):
        await save(store, f"t{number}")
        await save(store, f"u{number}", "two")
    first = await store.turns("one", limit=2)
    await save(store, "t4")
    await save(store, "t0")
    second = await store.turns("one", limit=2, cursor=first.next_cursor)
    last = await store.turns("one", limit=2, cursor=second.next_cursor)
    ids = [[turn.turn_id for turn in page.items] for page in (first, second, last)]
    assert ids == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    assert last.next_cursor is None
