"""Wrappers of tool sources: several sources as one, and a prefix for tool names."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from addon.tools.base import MAX_NAME, ServerState, SourceError, Tool, ToolError, ToolSource

_log = logging.getLogger(__name__)


async def outcomes_of(awaitables: Sequence[Awaitable[Any]], *, uncancelled: bool = False) -> list[BaseException | None]:
    """Run all concurrently to their end. Returns for each its exception, or None.

    Cancelling cancels them too; with `uncancelled`, it waits for their end instead.
    """
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    cancelled = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
            if not uncancelled:
                for task in tasks:
                    task.cancel()
    if cancelled:
        raise asyncio.CancelledError
    return [asyncio.CancelledError() if task.cancelled() else task.exception() for task in tasks]


class Refresher:
    """Reads a list with `refresh` in its own task. `name` is for the log. Other readers of the list hold `lock`."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], name: str) -> None:
        self._refresh = refresh
        self._name = name
        self.lock = asyncio.Lock()
        self._stale = False
        self._is_running = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Ask for a read. Any number of requests during a read cause one more read."""
        self._stale = True
        if not self._is_running:
            self._is_running = True  # set first: an eager task may end before `ensure_future` returns
            self._task = asyncio.ensure_future(self._run())
            self._task.set_name(self._name)

    async def close(self) -> None:
        """Stop reading, and wait for the current read to end."""
        self._stale = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._stale:
                async with self.lock:
                    self._stale = False
                    try:
                        await self._refresh()
                    except Exception as error:
                        _log.warning("%s stay unchanged: %s", self._name, error)
        finally:
            self._is_running = False


type ToolTable = dict[str, tuple[Tool, ToolSource]]
"""Tools by name, each with its source."""


class Combined(ToolSource):
    """Opens its sources concurrently, always closes all of them, and sends each call to the source of its tool.

    Opening raises SourceError if two tools have the same name. If names clash later, the first source in the list keeps
    the name, and a warning is logged.

    While it is open, the sources can be replaced: `prepare` opens the new ones, and then `replace` uses them or
    `discard` closes them.
    """

    def __init__(self, sources: Sequence[ToolSource], *, name: str = "tools") -> None:
        self.name = name
        self._sources = list(sources)
        self._opened: list[ToolSource] = []
        self._running: Counter[ToolSource] = Counter()
        """The number of calls that each source runs now."""
        self._call_ended = asyncio.Event()
        self._is_closing = False
        self._retiring: set[asyncio.Task[None]] = set()
        self._tools: ToolTable = {}
        self._refresher = Refresher(self._refresh, f"the tools of {name}")

    async def __aenter__(self) -> Self:
        try:
            await self._open_all(self._sources)
            async with self._refresher.lock:
                self._tools = await _tools_of(self._sources)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        for outcome in await self._close():
            if outcome is not None:
                raise outcome

    def name_of(self, tool: str) -> str:
        return self._tools[tool][1].name if tool in self._tools else self.name

    def server_states(self) -> Sequence[ServerState]:
        return [state for source in self._sources for state in source.server_states()]

    async def restart(self, server: str) -> bool:
        for source in list(self._sources):
            if await source.restart(server):
                return True
        return False

    async def list_tools(self) -> Sequence[Tool]:
        return [tool for tool, _ in self._tools.values()]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r}")
        source = self._tools[name][1]
        self._running[source] += 1
        try:
            return await source.call(name, args, call_id=call_id)
        finally:
            self._running[source] -= 1
            self._call_ended.set()

    async def prepare(self, sources: Sequence[ToolSource]) -> ToolTable:
        """Open those of these sources that are not in use. Returns the tools of all. Raises SourceError, with the new
        sources closed, if one cannot be opened, if names clash, or if a server that is down would replace one that is
        up."""
        new = [source for source in sources if source not in self._sources]
        try:
            await self._open_all(new)
            tools = await _tools_of(sources)
            self._check_servers(new)
            return tools
        except BaseException:
            await self.discard(new)
            raise

    def _check_servers(self, new: Sequence[ToolSource]) -> None:
        up = {state.name for state in self.server_states() if state.is_up}
        for state in (state for source in new for state in source.server_states()):
            if not state.is_up and state.name in up:
                raise SourceError(f"MCP server {state.name} does not come up as it is now configured: {state.error}")

    def replace(self, sources: Sequence[ToolSource], tools: ToolTable) -> None:
        """Use these open sources and their tools. Calls in progress end at the source where they began; a source that
        is left out is closed after them."""
        for source in (one for one in self._sources if one not in sources):
            source.changed = None
            if source in self._opened:
                self._opened.remove(source)
                task = asyncio.ensure_future(self._retire(source))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        self._sources, self._tools = list(sources), tools
        self._refresher.request()  # a list may have changed since

    async def discard(self, sources: Sequence[ToolSource]) -> None:
        """Close prepared sources that are not used."""
        opened = [source for source in sources if source in self._opened]
        for source in opened:
            self._opened.remove(source)
        for outcome in await outcomes_of([source.__aexit__(None, None, None) for source in opened], uncancelled=True):
            if outcome is not None:
                _log.warning("a source that is not used could not be closed: %s", outcome)

    async def _retire(self, source: ToolSource) -> None:
        """Close a source once its calls have ended, or when everything is closed."""
        while self._running[source] and not self._is_closing:
            self._call_ended.clear()
            await self._call_ended.wait()
        self._running.pop(source, None)
        try:
            await source.__aexit__(None, None, None)
        except Exception as error:
            _log.warning("%s could not be closed: %s", source.name, error)

    async def _open_all(self, sources: Sequence[ToolSource]) -> None:
        for source in sources:
            source.changed = self._refresher.request
        for outcome in await outcomes_of([self._open(source) for source in sources]):
            if outcome is not None:
                raise outcome

    async def _open(self, source: ToolSource) -> None:
        await source.__aenter__()
        self._opened.append(source)

    async def _close(self) -> list[BaseException | None]:
        opened, self._opened, self._tools = self._opened, [], {}
        self._is_closing = True
        self._call_ended.set()
        ends = [self._refresher.close(), *self._retiring]
        closing = (source.__aexit__(None, None, None) for source in opened)
        outcomes = await outcomes_of([*ends, *closing], uncancelled=True)
        return outcomes[len(ends) :]

    async def _refresh(self) -> None:
        if len(self._opened) < len(self._sources):
            return  # closed, or still opening: opening collects the tools itself
        self._tools, clashes = await _collected(self._sources)
        for clash in clashes:
            _log.warning("%s", clash)
        if self.changed:
            self.changed()


async def _tools_of(sources: Sequence[ToolSource]) -> ToolTable:
    """The tools of all sources. Raises SourceError if names clash."""
    tools, clashes = await _collected(sources)
    if clashes:
        raise SourceError("; ".join(clashes))
    return tools


async def _collected(sources: Sequence[ToolSource]) -> tuple[ToolTable, list[str]]:
    """The tools of all sources, and a message for each clash of names."""
    tools: ToolTable = {}
    clashes = []
    for source in sources:
        for tool in await source.list_tools():
            if tool.name in tools:
                first = tools[tool.name][1].name
                clashes.append(
                    f"two tools are named {tool.name!r}: one of {first} and one of {source.name}; "
                    "rename one, or give one of the sources a prefix"
                )
            else:
                tools[tool.name] = (tool, source)
    return tools, clashes


class Prefixed(ToolSource):
    """A source whose tool names begin with `prefix`. Made by `prefixed`."""

    def __init__(self, source: ToolSource, prefix: str) -> None:
        self.name = source.name
        self._source = source
        self._prefix = prefix
        self._omitted: set[str] = set()

    async def __aenter__(self) -> Self:
        self._source.changed = self._source_changed
        await self._source.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._source.__aexit__(*error)

    def server_states(self) -> Sequence[ServerState]:
        return self._source.server_states()

    async def restart(self, server: str) -> bool:
        return await self._source.restart(server)

    async def list_tools(self) -> Sequence[Tool]:
        tools = await self._source.list_tools()
        own = {tool.name for tool in tools}
        return [self._renamed(tool, own) for tool in tools if self._fits(tool.name)]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        if not name.startswith(self._prefix):
            raise ToolError(f"there is no tool {name!r}")
        return await self._source.call(name.removeprefix(self._prefix), args, call_id=call_id)

    def _source_changed(self) -> None:
        if self.changed:
            self.changed()

    def _fits(self, name: str) -> bool:
        fits = len(self._prefix) + len(name) <= MAX_NAME
        if not fits and name not in self._omitted:
            self._omitted.add(name)
            _log.warning(
                "%s: the tool %r is left out: with the prefix %r its name is longer than %d characters; "
                "give it a shorter prefix",
                *(self.name, name, self._prefix, MAX_NAME),
            )
        return fits

    def _renamed(self, tool: Tool, own: set[str]) -> Tool:
        after = tuple(f"{self._prefix}{other}" if other in own else other for other in tool.rules.after)
        name = f"{self._prefix}{tool.name}"
        return replace(tool, declaration=tool.declaration | {"name": name}, rules=replace(tool.rules, after=after))


def prefixed(source: ToolSource, prefix: str) -> ToolSource:
    """The source with `prefix` before its tools' names (`gh_` makes `gh_search`); "" changes nothing.

    Names of its own tools in `after` are renamed too. A tool whose name becomes too long is left out, with a warning.
    """
    return Prefixed(source, prefix) if prefix else source
