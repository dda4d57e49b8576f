"""The store's contract about sessions and cached tools, over every backend."""

import asyncio
from functools import partial

import pytest

from store.base import Store, UnknownCall, VersionChanged
from store.models import CachedTools, Policy, Snapshot, Toolset
from tests.store.conftest import Clock
from tests.store.records import save, types


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


async def test_a_version_is_another_after_each_write_and_never_comes_again(store: Store) -> None:
    assert await store.snapshot("one") == Snapshot(None, 0, 0)
    versions, gone = [0], list[int]()
    for _ in range(2):
        for write in (
            partial(store.put_policy, "one", Policy()),
            partial(store.put_policy, "one", Policy()),
            partial(store.put_toolset, "one", Toolset()),
            partial(store.put_toolset, "two", Toolset()),
            partial(store.put_toolset, "one", None),
        ):
            session = await write()
            versions.append(session.version)
            snapshot = await store.snapshot(session.name)
            assert snapshot[:2] == (session, session.version)
        await store.delete_session("one")
        gone.append((await store.snapshot("one")).version)
    assert gone == sorted(set(gone), reverse=True)
    assert gone[0] < 0
    made = await store.put_policy("one", Policy(), if_version=gone[-1])
    with pytest.raises(VersionChanged):
        await store.put_policy("one", Policy(), if_version=gone[-1])
    assert made.version > 0
    assert versions == sorted(set(versions))


async def test_a_snapshot_holds_the_revision_of_the_ledger(store: Store) -> None:
    await save(store, "t1")
    snapshot = await store.snapshot("one")
    assert snapshot[:2] == (None, 0)
    assert snapshot.revision != 0
    assert store.revision("one") in (None, snapshot.revision), "None: other processes write as well"


async def test_a_write_to_one_version_changes_no_other(store: Store) -> None:
    with pytest.raises(VersionChanged) as changed:
        await store.put_policy("one", Policy(), if_version=3)
    assert changed.value.current == 0
    first = await store.put_policy("one", Policy(), if_version=0)
    second = await store.put_toolset("one", Toolset(), if_version=first.version)
    last = await store.last_event_id()
    for version in (0, first.version, second.version + 1):
        for write in (
            store.put_policy("one", Policy(delivery="loop"), if_version=version),
            store.put_toolset("one", None, if_version=version),
            store.delete_session("one", if_version=version),
        ):
            with pytest.raises(VersionChanged) as changed:
                await write
            assert changed.value.current == second.version
    assert await store.session("one") == second
    assert await store.last_event_id() == last
    assert await store.delete_session("one", if_version=second.version) is True
    assert await store.delete_session("one", if_version=0) is False


async def test_one_of_two_writers_of_a_version_wins(store: Store) -> None:
    session = await store.put_policy("one", Policy())
    outcomes = await asyncio.gather(
        *(store.put_policy("one", Policy(max_rounds=n), if_version=session.version) for n in (1, 2, 3)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes].count(VersionChanged) == 2


async def test_sessions_leave_their_record_in_the_events(store: Store, clock: Clock) -> None:
    policy = await store.put_policy("one", Policy())
    tools = await store.put_toolset("one", Toolset(declarations=[{"name": "f"}]))
    first, second = await store.events(after=None)
    assert (first.type, first.data) == ("session.updated", policy.model_dump(mode="json"))
    assert (second.type, second.data) == ("tools.updated", tools.model_dump(mode="json"))
    assert (first.session, first.created_at) == ("one", clock.now)


async def test_a_bad_session_name_is_refused_and_nothing_is_written(store: Store) -> None:
    with pytest.raises(ValueError, match="name"):
        await store.put_policy("no spaces", Policy())
    assert await store.events(after=None) == []


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
        await save(store, f"t-{name}", name, keys=[b"key"])
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
    with pytest.raises(UnknownCall):
        await store.call("one", "c-t-one")
    (event,) = await store.events(after=None, session="one")
    assert (event.type, event.data) == ("session.deleted", {"name": "one"})
    assert await store.events(after=last) == [event]

    assert await store.session("two") is not None
    assert (await store.look_up("two", keys=[b"key"])).by_key == {b"key": ["t-two"]}
    assert await store.cached_tools("two", "cachedContents/1") is not None
    assert (await store.call("two", "c-t-two")).session == "two"
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
