"""The store's contract, sentence by sentence, over every backend."""

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from store.base import (
    MATCHES,
    AlreadyAnswered,
    BadCursor,
    Decided,
    LeaseLost,
    NotPending,
    Store,
    StoreUnavailable,
    UnknownCall,
    run_now,
)
from store.factory import BACKENDS, open_url
from store.models import (
    CachedTools,
    Call,
    Event,
    Executor,
    Policy,
    Response,
    Slot,
    Status,
    Step,
    ToolRules,
    Toolset,
    Turn,
)
from tests.store.conftest import TTL, URLS, Clock

SOON = 5.0
"""Seconds after which a wait that should be over has failed."""


def a_turn(turn_id: str = "t1", session: str = "one", *calls: Call, **fields: Any) -> Turn:
    parts = [{"functionCall": {"name": call.name, "args": call.args}} for call in calls]
    slots = [Slot(name=call.name, call_id=call.call_id) for call in calls]
    steps = [Step(content={"role": "model", "parts": parts}, slots=slots)]
    known = {"visible": [{"text": f"[{turn_id}]"}], "steps": steps, "created_at": 1_000_000.0}
    return Turn(turn_id=turn_id, session=session, **{**known, **fields})


def a_call(call_id: str = "c1", turn_id: str = "t1", session: str = "one", **fields: Any) -> Call:
    known = {"name": "get_weather", "args": {"city": "Oslo"}, "created_at": 1.0, "updated_at": 1.0}
    return Call(call_id=call_id, turn_id=turn_id, session=session, **{**known, **fields})


async def save(store: Store, turn_id: str, session: str = "one", *, keys: Any = (), **fields: Any) -> Call:
    """A turn with one call, of the id `c-TURN`."""
    call = a_call(f"c-{turn_id}", turn_id, session)
    await store.save_turn(a_turn(turn_id, session, call, **fields), [call], keys)
    return call


async def types(store: Store, session: str | None = None) -> list[str]:
    return [event.type for event in await store.events(after=0, session=session, limit=1000)]


def test_every_backend_is_in_this_suite() -> None:
    assert URLS.keys() == BACKENDS.keys()


# --- opening and closing --------------------------------------------------------------------------------------


async def test_closing_twice_is_fine_and_a_closed_store_is_unavailable(store: Store) -> None:
    await store.ping()
    await store.close()
    await store.close()
    for attempt in (store.ping(), store.session("one"), store.call("c1"), store.put_policy("one", Policy())):
        with pytest.raises(StoreUnavailable):
            await attempt


# --- sessions -------------------------------------------------------------------------------------------------


async def test_a_session_is_none_until_something_is_set_for_it(store: Store, clock: Clock) -> None:
    assert await store.session("one") is None
    made = await store.put_policy("one", Policy(delivery="loop"))
    assert (made.policy, made.toolset, made.created_at) == (Policy(delivery="loop"), None, clock.now)
    assert await store.session("one") == made
    assert await store.session("two") is None


async def test_policy_and_toolset_replace_what_was_there_and_leave_each_other_alone(store: Store, clock: Clock) -> None:
    toolset = Toolset(declarations=[{"name": "f"}], builtins=[{"googleSearch": {}}], tool_config={"a": {}})
    await store.put_policy("one", Policy(delivery="loop", client_tools="keep"))
    made = await store.put_toolset("one", toolset)
    clock.now += 5
    changed = await store.put_policy("one", Policy(on_pending="wait"))
    assert changed.policy == Policy(on_pending="wait")
    assert changed.toolset == toolset
    assert (changed.created_at, changed.updated_at) == (made.created_at, clock.now)
    cleared = await store.put_toolset("one", None)
    assert cleared.toolset is None
    assert cleared.policy == Policy(on_pending="wait")
    assert await store.session("one") == cleared
    assert (await store.put_toolset("two", Toolset())).toolset == Toolset(), "no tools are still a toolset"


async def test_sessions_leave_their_record_in_the_events(store: Store, clock: Clock) -> None:
    policy = await store.put_policy("one", Policy())
    tools = await store.put_toolset("one", Toolset(declarations=[{"name": "f"}]))
    first, second = await store.events(after=0)
    assert (first.type, first.data) == ("session.updated", policy.model_dump(mode="json"))
    assert (second.type, second.data) == ("tools.updated", tools.model_dump(mode="json"))
    assert (first.session, first.created_at) == ("one", clock.now)


async def test_a_bad_session_name_is_refused_and_nothing_is_written(store: Store) -> None:
    with pytest.raises(ValueError, match="name"):
        await store.put_policy("no spaces", Policy())
    assert await store.last_event_id() == 0


async def test_sessions_are_listed_by_name_in_pages(store: Store) -> None:
    for name in ("b", "d", "a", "c", "B"):
        await store.put_policy(name, Policy())
    first = await store.sessions(limit=2)
    assert [session.name for session in first.items] == ["B", "a"]
    await store.put_policy("A", Policy())
    second = await store.sessions(limit=2, cursor=first.next_cursor)
    assert [session.name for session in second.items] == ["b", "c"]
    last = await store.sessions(limit=2, cursor=second.next_cursor)
    assert [session.name for session in last.items] == ["d"]
    assert last.next_cursor is None
    assert (await store.sessions(limit=6)).next_cursor is None


async def test_deleting_a_session_forgets_all_of_it_and_nothing_of_another(store: Store) -> None:
    for name in ("one", "two"):
        await store.put_toolset(name, Toolset())
        await save(store, f"t-{name}", name, keys=[b"key"], user_key=b"user")
        await store.put_cached_tools(
            CachedTools(session=name, cached_content="cachedContents/1", names={"f": "f"}, created_at=1e6)
        )
    two = await types(store, "two")
    last = await store.last_event_id()

    assert await store.delete_session("one") is True

    assert await store.session("one") is None
    assert (await store.turns("one")).items == []
    assert await store.look_up("one", keys=[b"key"], turn_ids=["t-one"]) == await store.look_up("none")
    assert await store.cached_tools("one", "cachedContents/1") is None
    assert await store.bind("one", b"user", []) is None
    with pytest.raises(UnknownCall):
        await store.call("c-t-one")
    (event,) = await store.events(after=0, session="one")
    assert (event.type, event.data, event.event_id) == ("session.deleted", {"name": "one"}, last + 1)

    assert await store.session("two") is not None
    assert (await store.look_up("two", keys=[b"key"])).by_key == {b"key": ["t-two"]}
    assert await store.cached_tools("two", "cachedContents/1") is not None
    assert (await store.call("c-t-two")).session == "two"
    assert await types(store, "two") == two


async def test_deleting_what_is_not_there_says_so_and_leaves_no_event(store: Store) -> None:
    assert await store.delete_session("one") is False
    await save(store, "t1")
    assert await store.delete_session("one") is True, "a ledger is something, also without a policy"
    before = await store.last_event_id()
    assert await store.delete_session("one") is False
    assert await store.last_event_id() == before
    assert await types(store) == ["session.deleted"]


async def test_cached_tools_are_kept_by_session_and_replaced(store: Store) -> None:
    one = CachedTools(session="one", cached_content="cachedContents/1", names={"f": "f"}, created_at=1e6)
    two = one.model_copy(update={"names": {"f": "f_2"}})
    await store.put_cached_tools(one)
    assert await store.cached_tools("one", "cachedContents/1") == one
    assert await store.cached_tools("two", "cachedContents/1") is None
    assert await store.cached_tools("one", "cachedContents/2") is None
    await store.put_cached_tools(two)
    assert await store.cached_tools("one", "cachedContents/1") == two


# --- the ledger -----------------------------------------------------------------------------------------------


async def test_a_turn_comes_back_as_it_was_saved(store: Store) -> None:
    args = {"large": 2**80, "float": 1.0, "int": 1, "small": 5e-324, "text": "é😀\x00", "deep": [{"a": None}]}
    call = a_call(args=args, gemini_id="g1", model="m", surface="s", round=2, index=1)
    turn = a_turn("t1", "one", call, user_key=bytes(range(256)), usage=[{"totalTokenCount": 3}], delivery="loop")
    await store.save_turn(turn, [call], [b"\xff\x00"])
    found = await store.look_up("one", keys=[b"\xff\x00"])
    assert found.by_key == {b"\xff\x00": ["t1"]}
    assert found.turns == {"t1": turn}
    assert found.calls == {"c1": call}
    assert await store.call("c1") == call
    read = (await store.call("c1")).args
    assert [type(read[name]) for name in ("large", "float", "int")] == [int, float, int]
    assert isinstance(found.turns["t1"].steps[0].slots[0], Slot)
    assert (await store.turns("one")).items == [turn]


async def test_what_a_caller_does_to_its_documents_afterwards_changes_nothing_here(store: Store) -> None:
    args = {"city": ["Oslo"]}
    toolset = Toolset(declarations=[{"name": "f"}])
    call = a_call(args=args)
    await store.put_toolset("one", toolset)
    await store.save_turn(a_turn("t1", "one", call), [call])
    args["city"].append("Bergen")
    toolset.declarations[0]["name"] = "g"
    assert (await store.call("c1")).args == {"city": ["Oslo"]}
    session = await store.session("one")
    assert session
    assert session.toolset == Toolset(declarations=[{"name": "f"}])


async def test_saving_again_replaces_the_turn_but_for_when_it_was_made_and_what_it_is_bound_to(
    store: Store,
) -> None:
    await save(store, "t1", user_key=b"user", keys=[b"a"])
    await store.bind("one", b"user", [b"b"])
    call = a_call("c-t1")
    again = a_turn("t1", "one", call, created_at=2e6, delivered=True, visible=[{"text": "new"}], user_key=b"user")
    await store.save_turn(again, [], [b"c"])
    found = await store.look_up("one", keys=[b"a", b"b", b"c"])
    assert found.by_key == {b"a": ["t1"], b"b": ["t1"], b"c": ["t1"]}, "keys are added"
    assert found.turns["t1"] == again.model_copy(update={"created_at": 1e6, "bound": True})
    assert found.calls.keys() == {"c-t1"}
    assert await store.bind("one", b"user", []) is None


async def test_saving_again_can_change_the_user_key(store: Store) -> None:
    await save(store, "t1", user_key=b"old")
    await save(store, "t1", user_key=b"new")
    assert await store.bind("one", b"old", []) is None
    assert await store.bind("one", b"new", []) == "t1"


async def test_saving_again_leaves_the_calls_alone_and_adds_new_ones(store: Store) -> None:
    first, second = a_call("c1"), a_call("c2", index=1)
    await store.save_turn(a_turn("t1", "one", first), [first])
    answered, _ = await store.answer("c1", result={"temp": 3})
    await store.save_turn(a_turn("t1", "one", first, second), [first, second])
    found = await store.look_up("one", turn_ids=["t1"])
    assert found.calls == {"c1": answered, "c2": second}
    assert await types(store) == ["turn.created", "call.created", "call.updated", "turn.updated", "call.created"]


async def test_saving_leaves_the_records_in_the_events(store: Store) -> None:
    call = a_call()
    turn = a_turn("t1", "one", call, user_key=b"\xff")
    await store.save_turn(turn, [call])
    created, called = await store.events(after=0)
    assert (created.type, created.data) == ("turn.created", turn.model_dump(mode="json"))
    assert created.data["user_key"] == "ff"
    assert (called.type, called.data) == ("call.created", call.model_dump(mode="json"))


@pytest.mark.parametrize("call", [a_call(turn_id="t2"), a_call(session="two")], ids=["turn", "session"])
async def test_a_call_of_another_turn_or_session_is_refused_and_nothing_is_written(store: Store, call: Call) -> None:
    with pytest.raises(ValueError, match="c1 is not of turn t1"):
        await store.save_turn(a_turn(), [call])
    assert await store.last_event_id() == 0


async def test_what_json_cannot_hold_is_refused_and_nothing_is_written(store: Store) -> None:
    good, bad = a_call("c1"), a_call("c2", args={"text": "\ud800"})
    with pytest.raises(ValueError, match="surrogates"):
        await store.save_turn(a_turn("t1", "one", good, bad), [good, bad], [b"key"])
    assert (await store.look_up("one", turn_ids=["t1"], keys=[b"key"])) == await store.look_up("one")
    assert (await store.calls()).items == []
    assert await store.last_event_id() == 0
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
    assert await store.call(call.call_id) == call
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


async def test_of_equal_keys_the_delivered_turns_come_first_and_then_the_newest(store: Store) -> None:
    for turn_id, delivered in {"t1": True, "t2": False, "t3": True, "t4": False}.items():
        await save(store, turn_id, keys=[b"key"], delivered=delivered, created_at=1e6 - int(turn_id[1]))
    assert (await store.look_up("one", keys=[b"key"])).by_key == {b"key": ["t3", "t1", "t4", "t2"]}
    await save(store, "t2", delivered=True)
    assert (await store.look_up("one", keys=[b"key"])).by_key == {b"key": ["t3", "t2", "t1", "t4"]}


async def test_of_very_many_equal_keys_the_best_are_given(store: Store) -> None:
    for number in range(MATCHES + 4):
        await save(store, f"t{number}", keys=[b"key"], delivered=number == 0)
    found = await store.look_up("one", keys=[b"key"])
    newest = [f"t{number}" for number in range(MATCHES + 3, 4, -1)]
    assert found.by_key == {b"key": ["t0", *newest]}
    assert found.turns.keys() == {"t0", *newest}


async def test_binding_takes_the_newest_unbound_turn_once_and_for_good(store: Store) -> None:
    await save(store, "t1", user_key=b"user")
    await save(store, "t2", user_key=b"user")
    await save(store, "t3", user_key=b"other")
    await save(store, "t4", "two", user_key=b"user")
    assert await store.bind("one", b"user", [b"a"]) == "t2"
    assert await store.bind("one", b"user", [b"b"]) == "t1"
    assert await store.bind("one", b"user", [b"c"]) is None
    found = await store.look_up("one", keys=[b"a", b"b", b"c"], turn_ids=["t3"])
    assert found.by_key == {b"a": ["t2"], b"b": ["t1"]}
    assert [found.turns[turn_id].bound for turn_id in ("t1", "t2", "t3")] == [True, True, False]
    assert (await types(store, "one"))[-2:] == ["turn.updated"] * 2


async def test_binding_leaves_out_the_turns_that_it_cannot_be(store: Store) -> None:
    for turn_id in ("t1", "t2", "t3"):
        await save(store, turn_id, user_key=b"user")
    assert await store.bind("one", b"user", [b"a"], exclude=["t3", "none"]) == "t2"
    assert await store.bind("one", b"user", [b"b"], exclude={"t1", "t3"}) is None
    assert (await store.look_up("one", keys=[b"a", b"b"])).by_key == {b"a": ["t2"]}
    assert await store.bind("one", b"user", [b"b"]) == "t3"


async def test_of_two_that_bind_at_once_one_gets_the_turn(store: Store) -> None:
    await save(store, "t1", user_key=b"user")
    got = await asyncio.gather(*(store.bind("one", b"user", [b"key%d" % n]) for n in range(3)))
    assert sorted(got, key=str) == [None, None, "t1"]


async def test_the_revision_changes_whenever_look_up_could_answer_differently(store: Store) -> None:
    if store.revision("one") is None:
        pytest.skip("other processes write as well")
    assert store.revision("one") == 0
    await store.put_toolset("one", Toolset())
    assert store.revision("one") == 0
    seen = [0]

    def changed() -> None:
        revision = store.revision("one")
        assert revision is not None
        assert revision not in seen
        assert store.revision("one") == revision, "asking changes nothing"
        seen.append(revision)

    call = await save(store, "t1", user_key=b"user")
    changed()
    await save(store, "t1", user_key=b"user", keys=[b"key"])
    changed()
    await store.bind("one", b"user", [])
    changed()
    await store.answer(call.call_id, result=1)
    changed()
    await save(store, "t2", "two")
    await store.answer("c-t2", result=1)
    await store.put_policy("one", Policy())
    await store.look_up("one", turn_ids=["t1"])
    assert store.revision("one") == seen[-1], "nothing of this changed the ledger of one"
    await store.delete_session("one")
    assert store.revision("one") == 0
    await save(store, "t1")
    changed()
    assert store.revision("two") != 0


async def test_the_revision_changes_as_turns_expire(store: Store, clock: Clock) -> None:
    if store.revision("one") is None:
        pytest.skip("other processes write as well")
    await save(store, "t1", created_at=clock.now)
    await save(store, "t2", created_at=clock.now + 10)
    before = store.revision("one")
    clock.now += TTL + 1
    await store.expire()
    assert store.revision("one") not in (0, before)
    clock.now += 10
    await store.expire()
    assert store.revision("one") == 0


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


# --- calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, ["c0", "c1", "c2", "c3", "c4", "c5"]),
        ({"session": "one"}, ["c0", "c2", "c4"]),
        ({"session": "none"}, []),
        ({"status": Status.PENDING}, ["c2", "c3", "c4", "c5"]),
        ({"status": Status.DONE}, ["c0"]),
        ({"status": Status.FAILED}, ["c1"]),
        ({"status": Status.RUNNING}, []),
        ({"session": "one", "status": Status.PENDING}, ["c2", "c4"]),
        ({"name": "f0"}, ["c0", "c3"]),
        ({"name": "f0", "session": "two", "status": Status.PENDING}, ["c3"]),
    ],
    ids=str,
)
async def test_calls_are_listed_by_session_status_and_name(
    store: Store, filters: dict[str, Any], ids: list[str]
) -> None:
    for number in range(6):
        session = ("one", "two")[number % 2]
        call = a_call(f"c{number}", f"t{number}", session, name=f"f{number % 3}")
        await store.save_turn(a_turn(f"t{number}", session, call), [call])
    await store.answer("c0", result=1)
    await store.answer("c1", error="no")
    assert [call.call_id for call in (await store.calls(**filters)).items] == ids
    paged: list[str] = []
    cursor = None
    while True:
        page = await store.calls(**filters, limit=1, cursor=cursor)
        paged += [call.call_id for call in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert paged == ids


async def test_pages_of_calls_hold_still_while_calls_are_added_and_answered(store: Store) -> None:
    for number in range(3):
        await save(store, f"t{number}")
    first = await store.calls(limit=2)
    await save(store, "t3")
    await store.answer("c-t0", result=1)
    second = await store.calls(limit=2, cursor=first.next_cursor)
    assert [call.call_id for call in second.items] == ["c-t2", "c-t3"]
    assert second.next_cursor is None


@pytest.mark.parametrize("cursor", ["", "x", "-1", "call", "turn", "call-1", "call²", "callx1", "call" + "9" * 40])
async def test_a_cursor_that_the_store_did_not_make_is_refused(store: Store, cursor: str) -> None:
    for attempt in (
        store.calls(cursor=cursor),
        store.turns("one", cursor=cursor),
        store.sessions(cursor=cursor),
    ):
        with pytest.raises(BadCursor):
            await attempt


async def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    for number in range(2):
        await save(store, f"t{number}")
    cursor = (await store.turns("one", limit=1)).next_cursor
    with pytest.raises(BadCursor):
        await store.calls(cursor=cursor)


async def test_a_limit_below_one_is_refused(store: Store) -> None:
    for attempt in (
        store.sessions(limit=0),
        store.turns("one", limit=0),
        store.calls(limit=-1),
        store.events(after=0, limit=0),
    ):
        with pytest.raises(ValueError, match="limit"):
            await attempt


async def test_an_unknown_call_is_unknown(store: Store) -> None:
    with pytest.raises(UnknownCall, match="c1"):
        await store.call("c1")
    with pytest.raises(UnknownCall, match="c1"):
        await store.answer("c1", result=1)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"result": {"temp": 3}}, Status.DONE),
        ({"result": None}, Status.DONE),
        ({}, Status.DONE),
        ({"result": False}, Status.DONE),
        ({"result": [2**80, 1.5, "é"]}, Status.DONE),
        ({"error": "no such city"}, Status.FAILED),
        ({"error": ""}, Status.FAILED),
    ],
    ids=str,
)
async def test_an_answer_ends_the_call_and_the_same_again_changes_nothing(
    store: Store, clock: Clock, answer: dict[str, Any], status: Status
) -> None:
    call = await save(store, "t1")
    clock.now += 5
    answered, changed = await store.answer("c-t1", **answer)
    assert changed is True
    assert answered == call.model_copy(
        update={"result": None, "error": None, **answer, "status": status, "updated_at": clock.now}
    )
    assert await store.call("c-t1") == answered
    assert (await store.look_up("one", turn_ids=["t1"])).calls == {"c-t1": answered}
    event = (await store.events(after=0))[-1]
    assert (event.type, event.data) == ("call.updated", answered.model_dump(mode="json"))
    clock.now += 5
    assert await store.answer("c-t1", **answer) == (answered, False)
    assert await store.last_event_id() == event.event_id
    with pytest.raises(AlreadyAnswered) as refused:
        await store.answer("c-t1", result="another")
    assert refused.value.call == answered
    assert await store.call("c-t1") == answered


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1, 1.0, True),
        (2**80, 2**80, True),
        (2**80, 2**80 + 1, False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        (True, 1, False),
        ([0], [False], False),
        ({"a": True}, {"a": 1.0}, False),
        (None, {}, False),
        (None, False, False),
        ("1", 1, False),
        ([], {}, False),
        ("é", "é", True),
        ((1, 2), [1, 2], True),
    ],
)
async def test_answers_are_compared_as_json_values(store: Store, first: Any, second: Any, same: bool) -> None:
    await save(store, "t1")
    await store.answer("c-t1", result=first)
    if same:
        assert (await store.answer("c-t1", result=second))[1] is False
    else:
        with pytest.raises(AlreadyAnswered):
            await store.answer("c-t1", result=second)


async def test_a_result_and_an_error_of_the_same_words_are_two_answers(store: Store) -> None:
    await save(store, "t1")
    await store.answer("c-t1", error="no")
    with pytest.raises(AlreadyAnswered):
        await store.answer("c-t1", error="no, really")
    with pytest.raises(AlreadyAnswered):
        await store.answer("c-t1", result=None)
    assert (await store.answer("c-t1", error="no"))[1] is False


@pytest.mark.parametrize(
    "result",
    [float("nan"), {"a": float("inf")}, "\ud800", object()],
    ids=["not a number", "infinity", "half a surrogate pair", "an object"],
)
async def test_a_result_that_is_not_json_is_refused_and_the_call_stays_pending(store: Store, result: Any) -> None:
    call = await save(store, "t1")
    with pytest.raises(ValueError):  # noqa: PT011 (the words are the encoder's)
        await store.answer("c-t1", result=result)
    assert await store.call("c-t1") == call


async def test_a_call_cannot_be_answered_through_another_session(store: Store) -> None:
    call = await save(store, "t1", "one")
    with pytest.raises(UnknownCall):
        await store.answer("c-t1", result=1, session="two")
    assert await store.call("c-t1") == call
    assert (await store.answer("c-t1", result=1, session="one"))[1] is True


async def test_of_two_that_answer_at_once_one_wins(store: Store) -> None:
    await save(store, "t1")
    outcomes = await asyncio.gather(
        *(store.answer("c-t1", result=number) for number in range(3)), return_exceptions=True
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, AlreadyAnswered) for outcome in outcomes) == 2


# --- running calls --------------------------------------------------------------------------------------------

WEATHER = ["get_weather"]


async def claim(store: Store, worker: str = "w1", *, session: str = "one", lease: float = 30.0) -> str | None:
    call = await store.claim(session, WEATHER, lease=lease, worker=worker)
    return call.call_id if call else None


async def test_a_claim_takes_the_oldest_pending_call_of_the_tools_and_leases_it(store: Store, clock: Clock) -> None:
    await store.save_turn(a_turn("t0"), [a_call("c0", "t0", name="other")])
    await save(store, "t1", "two")
    first = await save(store, "t2")
    await save(store, "t3")
    clock.now += 5
    claimed = await store.claim("one", ["get_time", *WEATHER], lease=30.0, worker="w1")
    assert claimed == first.model_copy(
        update={
            "status": Status.RUNNING,
            "worker": "w1",
            "lease_until": clock.now + 30,
            "updated_at": clock.now,
        }
    )
    assert await store.call("c-t2") == claimed
    event = (await store.events(after=0))[-1]
    assert (event.type, event.data) == ("call.updated", claimed.model_dump(mode="json"))
    assert [await claim(store, "w2"), await claim(store, "w2")] == ["c-t3", None]
    assert await store.claim("one", [], lease=1.0, worker="w1") is None
    assert await claim(store, session="none") is None


async def test_of_claimers_at_once_each_call_goes_to_one(store: Store) -> None:
    for number in range(3):
        await save(store, f"t{number}")
    found = await asyncio.gather(*(claim(store, f"w{number}") for number in range(5)))
    assert sorted(call_id or "" for call_id in found) == ["", "", "c-t0", "c-t1", "c-t2"]


async def test_a_call_whose_lease_ran_out_goes_to_the_next_claimer(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    assert await claim(store, "w1", lease=30.0) == "c-t1"
    clock.now += 29.9
    assert await claim(store, "w2") is None
    clock.now += 0.1
    assert await claim(store, "w2") == "c-t1"
    assert (await store.call("c-t1")).worker == "w2"
    with pytest.raises(LeaseLost):
        await store.renew("c-t1", "w1", 30.0)


async def test_a_final_call_is_not_claimed_and_has_no_lease(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    await claim(store)
    answered, _ = await store.answer("c-t1", result=1)
    assert (answered.worker, answered.lease_until) == ("w1", None)
    clock.now += 1000
    assert await claim(store, "w2") is None


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_lease_is_a_time_above_zero(store: Store, lease: float) -> None:
    call = await save(store, "t1")
    with pytest.raises(ValueError, match="lease"):
        await claim(store, lease=lease)
    assert await store.call("c-t1") == call


async def test_the_first_answer_wins_whoever_has_the_lease(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    await claim(store, "w1", lease=1.0)
    clock.now += 2
    await claim(store, "w2")
    assert (await store.answer("c-t1", result="of w1"))[1] is True
    with pytest.raises(AlreadyAnswered):
        await store.answer("c-t1", result="of w2")


async def test_the_next_lease_is_the_one_that_runs_out_first(store: Store, clock: Clock) -> None:
    for number in range(3):
        await save(store, f"t{number}")
    await save(store, "t9", "two")
    assert await store.next_lease("one", WEATHER) is None
    await claim(store, lease=50.0)
    await claim(store, lease=20.0)
    await claim(store, lease=1.0, session="two")
    assert await store.next_lease("one", WEATHER) == clock.now + 20
    assert await store.next_lease("one", ["get_time"]) is None
    await store.answer("c-t1", result=1)
    assert await store.next_lease("one", WEATHER) == clock.now + 50
    clock.now += 60
    assert await store.next_lease("one", WEATHER) == clock.now - 10, "until somebody claims the call"


async def test_a_lease_is_renewed_by_the_worker_that_has_it(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    await claim(store, lease=30.0)
    clock.now += 20
    before = await store.last_event_id()
    renewed = await store.renew("c-t1", "w1", 30.0)
    assert renewed.lease_until == clock.now + 30
    assert await store.call("c-t1") == renewed
    assert await store.last_event_id() == before, "nothing has happened"
    clock.now += 100
    assert (await store.renew("c-t1", "w1", 5.0)).lease_until == clock.now + 5, "nobody else had claimed it"
    with pytest.raises(ValueError, match="lease"):
        await store.renew("c-t1", "w1", -1.0)


async def test_a_call_is_given_back_with_a_lease_of_nothing(store: Store) -> None:
    call = await save(store, "t1")
    await claim(store, "w1")
    before = await store.last_event_id()
    back = await store.renew("c-t1", "w1", 0)
    assert back == call.model_copy(update={"updated_at": back.updated_at})
    assert await store.wait(after=before, timeout=0)
    assert await claim(store, "w2") == "c-t1"


async def test_a_lease_that_is_not_the_worker_s_is_not_renewed(store: Store) -> None:
    for turn in ("pending", "running", "final", "own"):
        await save(store, turn)
    await store.start("c-own", loop_id="loop")
    await claim(store, "w2")
    await claim(store, "w1")
    await claim(store, "w1")
    await store.renew("c-pending", "w2", 0)
    await store.answer("c-final", result=1)
    for call_id, worker in (("c-pending", "w2"), ("c-running", "w2"), ("c-final", "w1"), ("c-own", "w1")):
        with pytest.raises(LeaseLost) as lost:
            await store.renew(call_id, worker, 5.0)
        assert lost.value.call == await store.call(call_id)


async def test_a_call_that_the_proxy_runs_itself_is_nobody_else_s(store: Store, clock: Clock) -> None:
    call = await save(store, "t1")
    started = await store.start("c-t1", loop_id="loop")
    assert started == call.model_copy(
        update={"status": Status.RUNNING, "loop_id": "loop", "updated_at": started.updated_at}
    )
    event = (await store.events(after=0))[-1]
    assert (event.type, event.data) == ("call.updated", started.model_dump(mode="json"))
    clock.now += 1000
    assert await claim(store) is None
    assert await store.start("c-t1", loop_id="loop") == started
    assert await store.last_event_id() == event.event_id
    with pytest.raises(NotPending) as refused:
        await store.start("c-t1", loop_id="another")
    assert refused.value.call == started


async def test_a_call_that_is_leased_or_final_is_not_started(store: Store) -> None:
    for turn in ("leased", "final"):
        await save(store, turn)
    await claim(store)
    await store.answer("c-final", result=1)
    for call_id in ("c-leased", "c-final"):
        with pytest.raises(NotPending):
            await store.start(call_id, loop_id="loop")


async def test_a_call_that_waits_for_an_approval_is_run_by_nobody_until_it_has_it(store: Store) -> None:
    call = await save(store, "t1")
    waiting = await store.ask_approval("c-t1", "loop")
    assert waiting == call.model_copy(
        update={"approval": "waiting", "loop_id": "loop", "updated_at": waiting.updated_at}
    )
    event = (await store.events(after=0))[-1]
    assert (event.type, event.data) == ("call.updated", waiting.model_dump(mode="json"))
    assert await store.ask_approval("c-t1", "loop") == waiting
    assert await store.last_event_id() == event.event_id
    assert await claim(store) is None
    with pytest.raises(NotPending):
        await store.start("c-t1", loop_id="loop")
    approved = await store.decide("c-t1", True)
    assert approved == waiting.model_copy(update={"approval": "approved", "updated_at": approved.updated_at})
    assert await store.decide("c-t1", True) == approved
    assert await claim(store) == "c-t1"
    assert (await store.decide("c-t1", True)).status is Status.RUNNING, "the same again is fine at any time"
    with pytest.raises(Decided):
        await store.decide("c-t1", False)
    with pytest.raises(Decided):
        await store.ask_approval("c-t1", "loop")


async def test_an_approved_call_can_be_started(store: Store) -> None:
    await save(store, "t1")
    await store.ask_approval("c-t1", "loop")
    await store.decide("c-t1", True)
    assert (await store.start("c-t1", loop_id="loop")).status is Status.RUNNING


async def test_a_call_may_be_saved_as_waiting_and_a_loop_comes_later(store: Store) -> None:
    await store.save_turn(a_turn("t1"), [a_call("c1", "t1", approval="waiting")])
    assert await claim(store) is None
    assert (await store.ask_approval("c1", "loop")).loop_id == "loop"
    assert (await store.decide("c1", True)).approval == "approved"


@pytest.mark.parametrize(
    ("reason", "error"), [("", "the call was denied"), ("too dear", "the call was denied: too dear")]
)
async def test_a_denied_call_is_final_and_says_so(store: Store, reason: str, error: str) -> None:
    await save(store, "t1")
    await store.ask_approval("c-t1", "loop")
    denied = await store.decide("c-t1", False, reason=reason)
    assert (denied.status, denied.approval, denied.error) == (Status.DENIED, "denied", error)
    assert await store.decide("c-t1", False) == denied
    with pytest.raises(Decided) as refused:
        await store.decide("c-t1", True)
    assert refused.value.call == denied
    with pytest.raises(AlreadyAnswered):
        await store.answer("c-t1", result=1)
    assert await claim(store) is None


async def test_what_does_not_wait_for_a_decision_takes_none(store: Store) -> None:
    await save(store, "never")
    await save(store, "expired")
    await store.ask_approval("c-expired", "loop")
    await store.settle("c-expired", Status.EXPIRED, error="nobody decided")
    for call_id in ("c-never", "c-expired"):
        for approved in (True, False):
            with pytest.raises(Decided):
                await store.decide(call_id, approved)
    with pytest.raises(NotPending):
        await store.ask_approval("c-expired", "loop")


async def test_of_two_that_decide_at_once_one_wins(store: Store) -> None:
    await save(store, "t1")
    await store.ask_approval("c-t1", "loop")
    outcomes = await asyncio.gather(
        *(store.decide("c-t1", approved) for approved in (False, True)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes].count(Decided) == 1


async def test_a_call_of_a_tool_that_needs_an_approval_is_claimed_with_one_only(store: Store, clock: Clock) -> None:
    await save(store, "before")
    assert await claim(store, lease=5.0) == "c-before"
    await store.put_toolset("one", Toolset(rules={"get_weather": ToolRules(approval=True)}))
    await save(store, "t1")
    await save(store, "t2")
    await save(store, "t3", "two")
    assert await claim(store) is None
    assert await claim(store, session="two") == "c-t3", "that session's tool needs none"
    await store.ask_approval("c-t2", "loop")
    await store.decide("c-t2", True)
    assert await claim(store) == "c-t2"
    clock.now += 5
    assert await claim(store) == "c-before", "it was let through before"


@pytest.mark.parametrize("status", [Status.DENIED, Status.EXPIRED])
@pytest.mark.parametrize("running", [False, True])
async def test_a_call_that_nobody_will_answer_is_settled(store: Store, status: Status, running: bool) -> None:
    await save(store, "t1")
    if running:
        await claim(store)
    settled = await store.settle("c-t1", status, error="the client has left")
    assert (settled.status, settled.error, settled.lease_until) == (status, "the client has left", None)
    event = (await store.events(after=0))[-1]
    assert (event.type, event.data) == ("call.updated", settled.model_dump(mode="json"))
    assert await store.settle("c-t1", Status.EXPIRED, error="again") == settled
    assert await store.last_event_id() == event.event_id
    with pytest.raises(AlreadyAnswered):
        await store.answer("c-t1", result=1)
    assert await claim(store) is None


async def test_an_answered_call_is_not_settled_any_more(store: Store) -> None:
    await save(store, "t1")
    answered, _ = await store.answer("c-t1", result=1)
    assert await store.settle("c-t1", Status.EXPIRED, error="too late") == answered


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING, Status.DONE, Status.FAILED])
async def test_settling_is_denying_or_expiring(store: Store, status: Status) -> None:
    call = await save(store, "t1")
    with pytest.raises(ValueError, match="settled"):
        await store.settle("c-t1", status, error="no")
    assert await store.call("c-t1") == call


async def test_what_runs_calls_asks_for_calls_that_are_there(store: Store) -> None:
    for attempt in (
        store.renew("c1", "w1", 1.0),
        store.start("c1", loop_id="loop"),
        store.ask_approval("c1", "loop"),
        store.decide("c1", True),
        store.settle("c1", Status.EXPIRED, error="no"),
    ):
        with pytest.raises(UnknownCall, match="c1"):
            await attempt


async def test_the_revision_changes_with_every_state_of_a_call(store: Store) -> None:
    for turn in ("t1", "t2", "t3"):
        await save(store, turn)
    seen = [store.revision("one")]
    for change in (
        lambda: claim(store),
        lambda: store.renew("c-t1", "w1", 60.0),
        lambda: store.ask_approval("c-t2", "loop"),
        lambda: store.decide("c-t2", True),
        lambda: store.start("c-t2", loop_id="loop"),
        lambda: store.settle("c-t3", Status.EXPIRED, error="no"),
    ):
        await change()
        seen.append(store.revision("one"))
    if None not in seen:
        assert len(set(seen)) == len(seen)


async def test_calls_go_with_their_session_and_their_turns(store: Store, clock: Clock) -> None:
    await save(store, "t1", "two")
    await store.delete_session("two")
    assert await claim(store, session="two") is None
    await save(store, "t2", "two")
    clock.now += TTL + 1
    await store.expire()
    assert await claim(store, session="two") is None
    assert await store.next_lease("two", WEATHER) is None


async def test_events_hold_no_values_of_executors_headers(store: Store) -> None:
    executor = Executor(type="http", url="https://tools.example/run", headers={"Authorization": "Bearer s3cret"})
    rules = {"f": ToolRules(executor=executor, after=["g"], retries=2)}
    toolset = Toolset(declarations=[{"name": "f"}, {"name": "g"}], rules=rules)
    await store.put_toolset("one", toolset)
    session = await store.put_policy("one", Policy(parallel=2))
    assert session.toolset == toolset
    for event in await store.events(after=0):
        assert event.data["toolset"]["rules"]["f"]["executor"]["headers"] == {"Authorization": "***"}
    assert "s3cret" not in repr(session)


# --- events ---------------------------------------------------------------------------------------------------


async def test_events_are_in_order_and_resumable(store: Store) -> None:
    assert await store.last_event_id() == 0
    assert await store.events(after=0) == []
    for number in range(3):
        await save(store, f"t{number}", ("one", "two")[number % 2])
    events = await store.events(after=0)
    ids = [event.event_id for event in events]
    assert ids == sorted(set(ids))
    assert ids[0] > 0
    assert await store.last_event_id() == ids[-1]
    assert await store.events(after=ids[2]) == events[3:]
    assert await store.events(after=ids[-1]) == []
    assert await store.events(after=0, limit=2) == events[:2]
    one = [event for event in events if event.session == "one"]
    assert len(one) == 4
    assert await store.events(after=0, session="one") == one
    assert await store.events(after=one[0].event_id, session="one", limit=2) == one[1:3]
    assert all(isinstance(event, Event) for event in events)


async def test_event_ids_only_grow_whatever_is_deleted(store: Store, clock: Clock) -> None:
    await save(store, "t1")
    last = await store.last_event_id()
    clock.now += TTL + 1
    await store.expire()
    assert await store.events(after=0) == []
    assert await store.last_event_id() == last
    await save(store, "t1")
    assert (await store.events(after=0))[0].event_id == last + 1


async def test_waiting_is_over_at_once_where_there_is_an_event_already(store: Store) -> None:
    await save(store, "t1", "one")
    assert await store.wait(after=0, timeout=0) is True
    assert await store.wait(after=0, timeout=0, session="one") is True
    assert await store.wait(after=0, timeout=0, session="two") is False
    assert await store.wait(after=await store.last_event_id(), timeout=0) is False


async def test_every_waiter_is_woken_by_its_session_s_events_and_by_no_other(store: Store) -> None:
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        after = await store.last_event_id()
        any_session = [group.create_task(store.wait(after=after, timeout=60)) for _ in range(3)]
        one = group.create_task(store.wait(after=after, timeout=60, session="one"))
        two = group.create_task(store.wait(after=after, timeout=60, session="two"))
        await turns_of_the_loop()
        await save(store, "t1", "one")
        assert await asyncio.gather(*any_session, one) == [True] * 4
        await turns_of_the_loop()
        assert not two.done()
        await store.put_policy("two", Policy())
        assert await two is True


async def test_a_waiter_is_not_woken_by_an_event_that_it_has_seen(store: Store) -> None:
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        waiting = group.create_task(store.wait(after=await store.last_event_id() + 1, timeout=60))
        await turns_of_the_loop()
        await store.put_policy("one", Policy())
        await turns_of_the_loop()
        assert not waiting.done()
        await store.put_policy("one", Policy())
        assert await waiting is True


async def test_a_write_without_suspension_wakes_as_well(store: Store) -> None:
    if store.suspends:
        pytest.skip("this backend suspends")
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        waiting = group.create_task(store.wait(after=0, timeout=60))
        await turns_of_the_loop()
        run_now(store.put_policy("one", Policy()))
        assert await waiting is True


async def test_a_wait_ends_with_its_timeout_and_can_be_cancelled(store: Store) -> None:
    assert await store.wait(after=0, timeout=0.01) is False
    waiting = asyncio.ensure_future(store.wait(after=0, timeout=60))
    await turns_of_the_loop()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.put_policy("one", Policy())


async def test_closing_ends_every_wait(store: Store) -> None:
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        waiting = [group.create_task(store.wait(after=0, timeout=60)) for _ in range(2)]
        await turns_of_the_loop()
        await store.close()
        assert await asyncio.gather(*waiting) == [False, False]
        assert await store.wait(after=0, timeout=60) is False


async def turns_of_the_loop() -> None:
    """Let what was started get to where it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


# --- upkeep ---------------------------------------------------------------------------------------------------


async def test_what_is_older_than_the_ttl_expires_and_the_rest_stays(store: Store, clock: Clock) -> None:
    now = clock.now
    cached = CachedTools(session="one", cached_content="cachedContents/1", names={}, created_at=now)
    await store.put_toolset("one", Toolset())
    await save(store, "t1", created_at=now, keys=[b"old", b"both"], user_key=b"user")
    await store.put_cached_tools(cached)
    clock.now = now + TTL
    assert await store.expire() == 0, "not older than the ttl yet"
    await save(store, "t2", created_at=now + TTL, keys=[b"new", b"both"])
    await save(store, "t3", created_at=now - 5)
    await store.put_cached_tools(
        cached.model_copy(update={"cached_content": "cachedContents/2", "created_at": now + TTL})
    )
    clock.now += 1

    # two turns with a call each, cached tools, and the events: one of the toolset, two of the first turn
    assert await store.expire() == 4 + 1 + 3

    found = await store.look_up("one", turn_ids=["t1", "t2", "t3"], keys=[b"old", b"new", b"both"])
    assert found.by_key == {b"new": ["t2"], b"both": ["t2"]}
    assert found.turns.keys() == {"t2"}
    assert [call.call_id for call in (await store.calls()).items] == ["c-t2"]
    assert await store.bind("one", b"user", []) is None
    with pytest.raises(UnknownCall):
        await store.call("c-t1")
    assert await store.cached_tools("one", "cachedContents/1") is None
    assert await store.cached_tools("one", "cachedContents/2") is not None
    assert {event.created_at for event in await store.events(after=0)} == {now + TTL}
    assert await store.session("one") is not None, "what a user has set stays"
    assert await store.expire() == 0
    clock.now += TTL + 1
    assert await store.expire() == 2 + 1 + 4
    assert await store.delete_session("one") is True


# --- no suspension --------------------------------------------------------------------------------------------


def test_a_store_that_never_suspends_needs_no_event_loop(tmp_path: Path) -> None:
    for url in (make(tmp_path) for make in URLS.values()):
        store = open_url(url, ttl=TTL)
        if store.suspends:
            continue
        call = a_call()
        cached = CachedTools(session="one", cached_content="c", names={}, created_at=1.0)
        steps: list[Coroutine[Any, Any, Any]] = [
            store.open(),
            store.ping(),
            store.put_policy("one", Policy()),
            store.put_toolset("one", Toolset()),
            store.session("one"),
            store.sessions(),
            store.put_cached_tools(cached),
            store.cached_tools("one", "c"),
            store.save_turn(a_turn("t1", "one", call), [call], [b"key"]),
            store.look_up("one", turn_ids=["t1"], keys=[b"key"]),
            store.bind("one", b"", [b"other"]),
            store.turns("one"),
            store.call("c1"),
            store.calls(),
            store.answer("c1", result=1),
            store.add_response(Response(response_id="r1", session="one", document={}, created_at=1.0)),
            store.response("one", "r1"),
            store.conversation("one", "chat"),
            store.history("one", "r1"),
            store.given_calls("one", ["c1"]),
            store.delete_response("one", "r1"),
            store.last_event_id(),
            store.events(after=0),
            store.expire(),
            store.delete_session("one"),
            store.close(),
        ]
        for step in steps:
            run_now(step)


def test_run_now_says_where_a_coroutine_suspends_after_all() -> None:
    closed = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="has suspended"):
        run_now(suspends())
    assert closed == [True]


async def test_records_of_one_store_do_not_depend_on_how_writes_are_interleaved(store: Store) -> None:
    """Writes are in one total order, the order of the events they leave behind."""
    await asyncio.gather(
        *(
            save(store, f"{session}-{number}", session)
            for session, number in itertools.product(("one", "two"), range(5))
        )
    )
    for session in ("one", "two"):
        listed = [turn.turn_id for turn in (await store.turns(session)).items]
        told = [
            event.data["turn_id"]
            for event in await store.events(after=0, session=session)
            if event.type == "turn.created"
        ]
        assert listed == told
