"""Wrappers of tool sources: several sources as one, and a prefix for tool names."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from addon.tools.base import MAX_NAME, ServerState, SourceError, Tool, ToolError, ToolSource
from addon.tools.refresher import Refresher

_log = logging.getLogger(__name__)


class Combined(ToolSource):
    """Opens its sources concurrently, always closes all of them, and sends each call to the source of its tool.

    Opening raises SourceError if two tools have the same name. If names clash later, the first source in the list keeps
    the name, and a warning is logged.
    """

    def __init__(self, sources: Sequence[ToolSource], *, name: str = "tools") -> None:
        self.name = name
        self._sources = list(sources)
        self._opened: list[ToolSource] = []
        self._tools: dict[str, tuple[Tool, ToolSource]] = {}
        self._refresher = Refresher(self._refresh, f"the tools of {name}")

    async def __aenter__(self) -> Self:
        for source in self._sources:
            source.changed = self._refresher.request
        try:
            for outcome in await _outcomes([self._open(source) for source in self._sources]):
                if outcome is not None:
                    raise outcome
            async with self._refresher.lock:
                self._tools, clashes = await self._collect()
            if clashes:
                raise SourceError("; ".join(clashes))
        except BaseException:
            await self._close(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for outcome in await self._close(kind, error, trace):
            if outcome is not None:
                raise outcome

    def name_of(self, tool: str) -> str:
        return self._tools[tool][1].name if tool in self._tools else self.name

    def server_states(self) -> Sequence[ServerState]:
        return [state for source in self._sources for state in source.server_states()]

    async def list_tools(self) -> Sequence[Tool]:
        return [tool for tool, _ in self._tools.values()]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r}")
        return await self._tools[name][1].call(name, args, call_id=call_id)

    async def _open(self, source: ToolSource) -> None:
        await source.__aenter__()
        self._opened.append(source)

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> list[BaseException | None]:
        opened, self._opened, self._tools = self._opened, [], {}
        await self._refresher.close()
        return await _outcomes([source.__aexit__(kind, error, trace) for source in opened], uncancelled=True)

    async def _collect(self) -> tuple[dict[str, tuple[Tool, ToolSource]], list[str]]:
        """The tools of all sources by name, and a message for each clash of names."""
        tools: dict[str, tuple[Tool, ToolSource]] = {}
        clashes = []
        for source in self._sources:
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

    async def _refresh(self) -> None:
        if len(self._opened) < len(self._sources):
            return  # closed, or still opening: opening collects the tools itself
        self._tools, clashes = await self._collect()
        for clash in clashes:
            _log.warning("%s", clash)
        if self.changed:
            self.changed()


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._source.__aexit__(kind, error, trace)

    def server_states(self) -> Sequence[ServerState]:
        return self._source.server_states()

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


async def _outcomes(
    coroutines: Sequence[Coroutine[Any, Any, Any]], *, uncancelled: bool = False
) -> list[BaseException | None]:
    """Run all concurrently to their end. Returns for each the exception that it raised, or None.

    Cancelling cancels them too; with `uncancelled` they run to their end first.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
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
