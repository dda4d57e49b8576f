"""Restarts of MCP servers: each of the proxy's processes has its own connection to a server."""

import asyncio

from addon.supervisor.membership import membership
from addon.tools.base import ToolSource
from addon.web import tasks


class ServerRestarts:
    """`source`: where the servers' tools come from, None if there is none."""

    def __init__(self, source: ToolSource | None) -> None:
        self._source = source
        self._running: dict[str, asyncio.Task[bool]] = {}

    def begin(self, server: str) -> bool:
        """Begin a restart in this process, unless one is running. Returns whether there is such a server."""
        source = self._source
        if source is None or server not in {state.name for state in source.server_states()}:
            return False
        if server not in self._running:
            task = self._running[server] = tasks.spawn(source.restart(server), name=f"restart of {server}")
            task.add_done_callback(lambda _: self._running.pop(server, None))
        return True

    async def everywhere(self, server: str) -> bool:
        """Restart the server in all processes of the proxy. Returns whether there is such a server, once this process
        has it again, or could not get it. Raises OSError if the supervisor does not answer."""
        if (member := membership()) is None:
            is_known = self.begin(server)
        else:
            is_known = any(one.get("restarts") for one in await member.states({"restart": server}))
        if (task := self._running.get(server)) is not None:
            await asyncio.wait({task})
        return is_known
