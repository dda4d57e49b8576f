"""Sessions of a toolgraft.toml in the store."""

from addon.config_file.reading import SessionEntry, apply_sessions
from store.backends.memory import MemoryStore
from store.models import Policy, Toolset

TOOLS = Toolset(declarations=[{"name": "get_time"}])


async def test_a_session_gets_the_policy_and_toolset_of_the_file_and_only_changes_are_written() -> None:
    store = MemoryStore()
    await store.open()
    await store.put_policy("work", Policy(delivery="loop", max_rounds=3))
    await store.put_toolset("own", TOOLS)
    entries = {
        "work": SessionEntry(Policy(delivery="hold"), TOOLS),
        "own": SessionEntry(Policy(), None),
        "new": SessionEntry(Policy(), Toolset()),
    }
    assert await apply_sessions(store, entries) == ["work", "new"]
    work, own, new = [(await store.snapshot(name)).record for name in entries]
    assert work is not None
    assert (work.policy, work.toolset) == (Policy(delivery="hold"), TOOLS)
    assert own is not None
    assert own.toolset == TOOLS
    assert new is not None
    assert new.toolset == Toolset()
    assert await apply_sessions(store, entries) == []
    await store.close()
