"""The proxy's sources while the files that name them change."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from addon.loop.sources import ProxySources, sources_of
from addon.settings import Settings
from addon.state_folder import write_file
from addon.tools.base import SourceError
from addon.tools.mcp_pins import Pins

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "tools" / "mcp_server.py"


def function(name: str, result: str) -> str:
    return f'async def {name}() -> str:\n    """Return a text."""\n    return {result!r}\n'


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "tools.py"
        self.file.write_text(function("one", "before"))
        self.pins = Pins(folder / "pins.json", write_file)
        self.settings = Settings(tools=(str(self.file),), state=folder)

    def mcp(self, **servers: Any) -> None:
        path = self.folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        self.settings = self.settings.model_copy(update={"mcp": (str(path),)})

    async def names(self, sources: ProxySources) -> list[str]:
        return [tool.name for tool in await sources.combined.list_tools()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_there_is_no_source_without_files_unless_a_configuration_may_name_some() -> None:
    assert sources_of(Settings()) is None
    assert sources_of(Settings(config="/x.toml")) is not None


async def test_a_changed_tools_file_is_imported_and_an_unchanged_one_is_not(world: World) -> None:
    other = world.folder / "other.py"
    other.write_text(function("two", "two"))
    world.settings = world.settings.model_copy(update={"tools": (str(world.file), str(other))})
    sources = ProxySources(world.settings)
    async with sources.combined:
        assert (await sources.prepare(world.settings)).used == []
        world.file.write_text(function("one", "after") + function("three", "three"))
        change = await sources.prepare(world.settings)
        assert (change.used, change.left_out) == ([str(world.file)], [])
        assert await sources.combined.call("one", {}, call_id="c1") == "before"
        sources.apply(change)
        assert await sources.combined.call("one", {}, call_id="c2") == "after"
        assert await world.names(sources) == ["one", "three", "two"]
        change = await sources.prepare(world.settings.model_copy(update={"tools": (str(other),)}))
        assert (change.used, change.left_out) == ([], [str(world.file)])
        sources.apply(change)
        assert await world.names(sources) == ["two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\ndef broken(:\n", r"tools\.py:3: SyntaxError"),
        ("\nraise ValueError('no')\n", r"tools\.py:2: ValueError: no"),
        ("import sys\nsys.exit(1)\n", r"tools\.py:2: SystemExit"),
        ("x = 1\n", r"tools\.py has no tools"),
        (None, r"tools\.py: no such file"),
    ],
)
async def test_a_tools_file_that_cannot_be_used_changes_nothing(world: World, text: str | None, message: str) -> None:
    sources = ProxySources(world.settings)
    async with sources.combined:
        world.file.unlink() if text is None else world.file.write_text(text)
        with pytest.raises(SourceError, match=message):
            await sources.prepare(world.settings)
        assert await sources.combined.call("one", {}, call_id="c1") == "before"


async def test_servers_of_one_name_in_two_files_are_pinned_under_two_names(world: World) -> None:
    world.mcp(files={"command": sys.executable})
    settings = world.settings.model_copy(update={"mcp": world.settings.mcp * 2})
    states = ProxySources(settings, world.pins).combined.server_states()
    assert [state.name for state in states] == ["files", "files#2"]


async def test_a_module_of_a_replaced_file_is_not_kept(world: World) -> None:
    def modules() -> int:
        return sum(name.startswith("toolgraft_tools_") and name.endswith("_tools") for name in sys.modules)

    before = modules()
    sources = ProxySources(world.settings)
    async with sources.combined:
        for number in range(3):
            world.file.write_text(function("one", str(number)))
            sources.apply(await sources.prepare(world.settings))
            async with asyncio.timeout(30):
                await asyncio.gather(*sources.combined._retiring)
            assert modules() == before + 1
    assert modules() == before


@pytest.mark.e2e
async def test_servers_come_and_go_and_an_unchanged_one_keeps_its_process(world: World) -> None:
    server = {"command": sys.executable, "args": [str(SERVER), "stdio"]}
    world.mcp(kept=server | {"prefix": "kept_"})
    sources = ProxySources(world.settings, pins=world.pins)
    async with sources.combined:
        states = sources.combined.server_states
        kept = sources._entries[1].source
        world.mcp(kept=server | {"prefix": "kept_"}, new=server | {"prefix": "new_"})
        change = await sources.prepare(world.settings)
        assert change.used == ["MCP server new"]
        sources.apply(change)
        assert sources._entries[1].source is kept
        assert [(state.name, state.is_up) for state in states()] == [("kept", True), ("new", True)]
        assert any(name.startswith("new_") for name in await world.names(sources))
        world.mcp(new=server | {"prefix": "renamed_"})
        change = await sources.prepare(world.settings)
        assert (change.used, change.left_out) == (["MCP server new"], ["MCP server kept"])
        sources.apply(change)
        assert [state.name for state in states()] == ["new"]
        names = await world.names(sources)
        assert any(name.startswith("renamed_") for name in names)
        assert not any(name.startswith(("new_", "kept_")) for name in names)
        assert list(world.pins.current()) == ["new"]


@pytest.mark.e2e
async def test_a_file_and_a_server_with_tools_of_one_name_do_not_open(world: World) -> None:
    world.file.write_text(function("add", "mine"))
    world.mcp(numbers={"command": sys.executable, "args": [str(SERVER), "stdio"]})
    message = re.escape(f"two tools are named 'add': one of {world.file} and one of MCP server 'numbers'; ")
    with pytest.raises(SourceError, match=f"^{message}rename one, or give one of the sources a prefix"):
        await ProxySources(world.settings).combined.__aenter__()


@pytest.mark.e2e
async def test_a_server_that_is_up_does_not_give_way_to_one_that_does_not_come_up(world: World) -> None:
    server = {"command": sys.executable, "args": [str(SERVER), "stdio"]}
    world.mcp(one=server)
    sources = ProxySources(world.settings, pins=world.pins)
    async with sources.combined:
        names = await world.names(sources)
        pinned = world.pins.current()
        world.mcp(one={"command": "false"})
        with pytest.raises(SourceError, match="MCP server one does not come up as it is now configured"):
            await sources.prepare(world.settings)
        assert await world.names(sources) == names
        assert world.pins.current() == pinned
        world.mcp(one=server | {"tools": ["no_such_tool"]})
        with pytest.raises(SourceError, match="no_such_tool"):
            await sources.prepare(world.settings)
        world.mcp(one=server, other={"command": "false"})  # a new one may come up later
        sources.apply(await sources.prepare(world.settings))
        assert [state.is_up for state in sources.combined.server_states()] == [True, False]
