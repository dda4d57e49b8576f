"""Shared by tests of tool sources: bounded waiting, a source of fixed tools, and tools files."""

import asyncio
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from addon.tools.base import RunRules, Tool, ToolSource

type Until = Callable[[Callable[[], bool]], Awaitable[None]]


class FixedSource(ToolSource):
    """A source of tools by name. Awaits `opening` and `closing`; `opened` and `closed` count."""

    def __init__(
        self,
        name: str,
        *tools: str,
        after: Sequence[str] = (),
        opening: Callable[[], Awaitable[Any]] | None = None,
        closing: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.name = name
        self.tools = list(tools)
        self.after = tuple(after)
        self.opening = opening
        self.closing = closing
        self.opened = 0
        self.closed = 0
        self.calls: list[tuple[str, Mapping[str, Any], str]] = []

    async def __aenter__(self) -> "FixedSource":
        if self.opening:
            await self.opening()
        self.opened += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.closing:
            await self.closing()
        self.closed += 1

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool({"name": name}, {"type": "object"}, RunRules(after=self.after)) for name in self.tools]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        self.calls.append((name, args, call_id))
        return self.name


@pytest.fixture(params=[False, True], ids=["", "eager"])
async def eager(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Tasks start as usual, or eagerly when created, as in mitmproxy's event loop."""
    loop = asyncio.get_running_loop()
    if request.param:
        loop.set_task_factory(asyncio.eager_task_factory)
    yield
    loop.set_task_factory(None)


@pytest.fixture
def fixed() -> type[FixedSource]:
    return FixedSource


@pytest.fixture
def until() -> Until:
    async def wait(condition: Callable[[], bool]) -> None:
        """Wait up to ten seconds for the condition."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is waited for is in another process
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def tools_file(tmp_path: Path) -> Callable[..., Path]:
    def write(source: str, name: str = "tools.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source).lstrip("\n"))
        return path

    return write
