"""The tool sources named in the settings, as one source that can be changed while the proxy runs. Each kind is imported
only if it is used: without the MCP SDK, the proxy starts in two thirds of the time."""

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from addon.settings import Settings
from addon.tools.base import SourceError, ToolSource
from addon.tools.combined import Combined, ToolTable, prefixed
from addon.tools.daemon_pool import DaemonPool
from addon.tools.mcp_pins import PinnedSource, Pins

_IMPORT_TIMEOUT = 60.0
"""The longest import of a changed tools file, in seconds."""

_SERVER_TIMEOUT = 60.0
"""Seconds for a changed server to come up. Longer than at a start, because nobody waits."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """A source as described by the files. Two with the same `identity` are the same source. `make` raises SourceError.
    `is_slow`: `make` may run for long."""

    identity: Hashable
    name: str
    make: Callable[[], ToolSource]
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    identity: Hashable
    name: str
    source: ToolSource


@dataclass(frozen=True, slots=True)
class Change:
    """Sources that are open, but not in use yet. `used`: the names of added or changed sources, without servers that
    are down. `left_out`: the names of sources that are no longer used."""

    entries: list[_Entry]
    tools: ToolTable
    new: list[ToolSource]
    used: list[str]
    left_out: list[str]
    pinned: Mapping[str, PinnedSource]


class ProxySources:
    """`combined` has the tools of all sources. The constructor only imports Python files. Raises SourceError."""

    def __init__(self, settings: Settings, pins: Pins | None = None) -> None:
        self._pins = pins
        self._more: dict[str, float] = {}
        """Further arguments of `McpSource`."""
        self._entries = [_Entry(spec.identity, spec.name, spec.make()) for spec in self._specs(settings)]
        self._more = {"start_timeout": _SERVER_TIMEOUT}
        self._importing = DaemonPool("import of changed tools files")
        self.combined = Combined([entry.source for entry in self._entries], name="graft_tools and graft_mcp")

    async def prepare(self, settings: Settings) -> Change:
        """Open the sources that are new in the settings or in their files. Nothing changes before `apply`. Raises
        SourceError, also if a server that was up would be replaced by one that does not come up."""
        free, entries, new = list(self._entries), list[_Entry](), list[_Entry]()
        pinned = self._pins.current() if self._pins is not None else {}
        for spec in self._specs(settings):
            entry = next((one for one in free if one.identity == spec.identity), None)
            if entry is not None:
                free.remove(entry)
            else:
                entry = _Entry(spec.identity, spec.name, await self._made(spec))
                new.append(entry)
            entries.append(entry)
        try:
            tools = await self.combined.prepare([entry.source for entry in entries])
        except BaseException:
            self._restore_pins(pinned)
            raise
        used = dict.fromkeys(entry.name for entry in new if _is_up(entry.source))
        kept = {entry.name for entry in entries}
        left_out = dict.fromkeys(entry.name for entry in free if entry.name not in kept)
        return Change(entries, tools, [entry.source for entry in new], list(used), list(left_out), pinned)

    def apply(self, change: Change) -> None:
        """Use the prepared sources from now on. Calls in progress end with their old source."""
        self._entries = change.entries
        self.combined.replace([entry.source for entry in change.entries], change.tools)
        if self._pins is not None:
            self._pins.keep_only(state.name for state in self.combined.server_states())

    async def discard(self, change: Change) -> None:
        """Close the prepared sources without using them."""
        await self.combined.discard(change.new)
        self._restore_pins(change.pinned)

    def _restore_pins(self, pinned: Mapping[str, PinnedSource]) -> None:
        if self._pins is not None:
            self._pins.restore(pinned)

    async def _made(self, spec: _Spec) -> ToolSource:
        if not spec.is_slow:
            return spec.make()
        try:
            async with asyncio.timeout(_IMPORT_TIMEOUT):
                return await self._importing.run(spec.make)
        except TimeoutError:
            raise SourceError(f"{spec.name}: its import takes longer than {_IMPORT_TIMEOUT:g} s") from None

    def _specs(self, settings: Settings) -> Iterator[_Spec]:
        for path in settings.tools:
            yield _python(path)
        names: dict[str, int] = {}
        for path in settings.mcp:
            yield from self._servers(path, settings, names)

    def _servers(self, path: str, settings: Settings, names: dict[str, int]) -> Iterator[_Spec]:
        """`names`: how often each server name has occurred; a server's tools are pinned under a unique name."""
        from addon.tools.mcp_config import Server, read_servers
        from addon.tools.mcp_servers import McpSource
        from addon.tools.mcp_transport import McpBounds

        bounds = McpBounds(settings.max_tools, settings.max_tool, settings.max_line)

        def make(name: str, server: Server, unique: str) -> ToolSource:
            source = McpSource(name, server, pins=self._pins, bounds=bounds, pin_name=unique, **self._more)
            return prefixed(source, server.prefix)

        for name, server in read_servers(path).items():
            number = names[name] = names.get(name, 0) + 1
            unique = name if number == 1 else f"{name}#{number}"
            identity = ("mcp", path, unique, server.model_dump_json(), frozenset(server.approvals))
            yield _Spec(identity, f"MCP server {name}", partial(make, name, server, unique))


def _is_up(source: ToolSource) -> bool:
    return all(state.is_up for state in source.server_states())


def _python(path: str) -> _Spec:
    from addon.tools.python import PythonSource

    try:
        digest = hashlib.sha256(Path(path).read_bytes()).digest()
    except (OSError, ValueError):
        digest = b""  # PythonSource reports the error
    return _Spec(("python", path, digest), path, lambda: PythonSource(path), is_slow=True)


def sources_of(settings: Settings, pins: Pins | None = None) -> ProxySources | None:
    """None: no sources are set, and no configuration file may add some. Raises SourceError."""
    if not (settings.tools or settings.mcp or settings.config):
        return None
    return ProxySources(settings, pins)
