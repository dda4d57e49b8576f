"""However many sessions and writes there are, what a SQLite store remembers of them stays within its budget."""

from pathlib import Path

from store.backends._changes import Changes
from store.backends.sqlite import SqliteStore
from store.budget import Budget
from store.models import Policy, Toolset
from tests.store.sqlite.conftest import fill


async def test_sessions_beyond_the_budget_are_read_from_the_file(store: SqliteStore, path: Path) -> None:
    store.remember_within(budget := Budget(200_000))
    tools = Toolset(declarations=[{"name": "f", "description": "d" * 2000}])
    for number in range(100):
        await store.put_toolset(f"s{number}", tools)
        await store.put_policy(f"s{number}", Policy(max_rounds=1 + number))
        assert sum(budget.sizes().values()) <= budget.limit
    assert budget.sizes()["sessions"] < 70_000
    for number in range(100):
        record = (await store.snapshot(f"s{number}")).record
        assert record is not None
        assert (record.policy.max_rounds, record.toolset) == (1 + number, tools)
    assert await store.delete_session("s7")
    assert (await store.snapshot("s7")).record is None


async def test_names_that_clients_make_up_take_a_bounded_part(store: SqliteStore) -> None:
    store.remember_within(budget := Budget(200_000))
    await fill(store)
    revision = store.revision("one")
    assert revision
    for number in range(2000):
        snapshot = await store.snapshot(f"made-up-{number}")
        assert (snapshot.record, snapshot.version, snapshot.revision) == (None, 0, 0)
        assert sum(budget.sizes().values()) <= budget.limit
    later = store.revision("one")
    assert later is not None
    assert later > revision, "another than any that was known"
    assert store.changes("one", revision) is None, "nobody knows"
    await fill(store, "t2")
    changes = store.changes("one", later)
    assert changes is not None
    assert changes.turn_ids == {"t2"}


def test_the_oldest_writes_are_forgotten_first() -> None:
    changes = Changes(1)
    for revision in range(1, 100):
        changes.note(revision, revision + 1, [f"t{revision}"], [b"%d" % revision] * 10)
    size = changes.size
    changes.shrink(size // 3)
    assert 0 < changes.size <= size // 3
    assert changes.since(50, 100) is None
    found = changes.since(98, 100)
    assert found is not None
    assert found.turn_ids == {"t98", "t99"}
    changes.shrink(0)
    assert (changes.size, changes.since(99, 100)) == (0, None)
