"""Gives sessions the policies and toolsets of a toolgraft.toml."""

from collections.abc import Mapping

from addon.config_file.reading import SessionEntry
from store.base import Store
from store.models import Policy


async def apply_sessions(store: Store, sessions: Mapping[str, SessionEntry]) -> list[str]:
    """Write the policies and toolsets that differ from the store, and return the names of the changed sessions. Resets
    settings that the file does not name, but keeps a toolset if the file sets none. Raises StoreError."""
    changed = []
    for name, entry in sessions.items():
        record, _, _ = await store.snapshot(name)
        has_policy = entry.policy == (record.policy if record is not None else Policy())
        has_tools = entry.toolset is None or (record is not None and record.toolset == entry.toolset)
        if not has_policy:
            await store.put_policy(name, entry.policy)
        if not has_tools:
            await store.put_toolset(name, entry.toolset)
        if not (has_policy and has_tools):
            changed.append(name)
    if changed:
        await store.sync()
    return changed
