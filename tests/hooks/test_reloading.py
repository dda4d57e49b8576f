"""Changes of the files that a running proxy has read: applied whole, or reported and left."""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from addon.hooks.reloading import Reloading
from addon.hooks.runtime import Runtime
from store.base import StoreUnavailable
from store.models import Policy
from tests.hooks.harness import Hooks

TOOL = 'def {name}() -> str:\n    """A tool."""\n    return ""\n'


class World:
    """A proxy with a toolgraft.toml and a tools file."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "toolgraft.toml"
        self.tools = folder / "tools.py"
        self.tools.write_text(TOOL.format(name="one"))
        self.hooks: Hooks

    async def start(self, make: Callable[..., Hooks], text: str, **options: Any) -> None:
        self.config.write_text(text)
        self.hooks = make(config=str(self.config), state=str(self.config.parent / "state"), **options)
        await self.runtime.serve()

    @property
    def runtime(self) -> Runtime:
        found = self.hooks.lifecycle.runtime
        assert found is not None
        return found

    def write(self, path: Path, text: str) -> None:
        """Also if the old text was written within the same tick of the file system's clock, and has the same length."""
        path.write_text(text)
        now = path.stat().st_mtime_ns
        os.utime(path, ns=(now, now + 1_000_000))

    async def look(self) -> None:
        """Two looks: a file that has just changed is left to the next one."""
        reloading = self.hooks.part(Reloading)
        await reloading.look()
        await reloading.look()
        for _ in range(100):  # the list of tools is read in a task
            await asyncio.sleep(0)

    def names(self) -> list[str]:
        return list(self.runtime.executors.tools)

    async def policy(self, session: str) -> Policy | None:
        record = (await self.runtime.store.snapshot(session)).record
        return None if record is None else record.policy


@pytest.fixture
async def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO, logger="toolgraft")
    return World(tmp_path)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "toolgraft"]
    caplog.clear()
    return found


Make = Callable[..., Hooks]
Log = pytest.LogCaptureFixture


async def test_nothing_is_done_while_nothing_changes(world: World, make: Make, caplog: Log) -> None:
    await world.start(make, '[options]\ntools = ["tools.py"]\nmax_rounds = 3\n[sessions.work]\nmax_rounds = 4\n')
    grafter = world.runtime.grafter
    await world.runtime.store.put_policy("work", Policy(max_rounds=9))  # in the console
    messages(caplog)
    await world.look()
    world.tools.touch()
    world.write(world.config, "# a comment\n" + world.config.read_text())
    await world.look()
    assert messages(caplog) == []
    assert world.runtime.grafter is grafter
    assert await world.policy("work") == Policy(max_rounds=9)


async def test_options_sessions_and_tools_of_the_file_are_changed_in_the_running_proxy(
    world: World, make: Make, caplog: Log
) -> None:
    await world.start(make, "[options]\nmax_rounds = 3\nparallel = 2\n[sessions.work]\nmax_rounds = 4\n")
    await world.look()
    assert world.names() == []
    messages(caplog)
    text = '[options]\nmax_rounds = 5\ntools = ["tools.py"]\n[sessions.work]\nmax_rounds = 6\n[sessions.new]\n'
    world.write(world.config, text)
    await world.look()
    settings = world.runtime.settings
    assert (settings.max_rounds, settings.parallel, settings.tools) == (5, 8, (str(world.tools),))
    assert world.hooks.options.graft_max_rounds == "5"
    assert world.names() == ["one"]
    assert [one["name"] for one in world.runtime.grafter.session_configs.shared] == ["one"]
    assert await world.policy("work") == Policy(max_rounds=6)
    assert messages(caplog) == [
        f"changed, and used from now on: {world.tools}",
        f"{world.config} has changed, and holds from now on: max_rounds, tools, parallel, session work, session new",
    ]


async def test_a_changed_tools_file_is_used_and_a_wrong_one_is_reported_with_its_line(
    world: World, make: Make, caplog: Log
) -> None:
    await world.start(make, "", tools=[str(world.tools)])
    await world.look()
    messages(caplog)
    world.write(world.tools, TOOL.format(name="two"))
    await world.hooks.part(Reloading).look()
    assert world.names() == ["one"]  # it may still be being written
    await world.look()
    assert world.names() == ["two"]
    assert messages(caplog) == [f"changed, and used from now on: {world.tools}"]
    world.write(world.tools, "\ndef broken(:\n")
    await world.look()
    await world.look()
    (message,) = messages(caplog)
    assert message.startswith(f"{world.tools}:2: SyntaxError: ")
    assert message.endswith(". Nothing of the change is used")
    assert world.names() == ["two"]
    world.write(world.tools, TOOL.format(name="three"))
    await world.look()
    assert world.names() == ["three"]


async def test_what_is_left_out_or_does_not_come_up_is_not_said_to_be_used(
    world: World, make: Make, caplog: Log
) -> None:
    await world.start(make, '[options]\ntools = ["tools.py"]\n')
    await world.look()
    messages(caplog)
    world.write(world.config, '[options]\ntools = []\n[mcpServers.gone]\ncommand = "/no/such/program"\n')
    await world.look()
    assert world.names() == []
    assert "MCP server 'gone' is not up" in caplog.text
    found = messages(caplog)
    assert f"no longer used: {world.tools}" in found
    assert not [one for one in found if "used from now on" in one]
    world.write(world.config, '[options]\ntools = ["tools.py"]\n')
    await world.look()
    assert messages(caplog)[:2] == [
        f"changed, and used from now on: {world.tools}",
        "no longer used: MCP server gone",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[options]\n\nmax_round = 4", "{config}: options.max_round is unknown; did you mean max_rounds?"),
        ("[options]\nmax_rounds = 4\nfilter = '~('", "{config}: graft_filter='~(': must be a mitmproxy flow filter"),
        ("[options]\nmax_rounds = 4\nrecord = '/'", "{config}: graft_record='/': cannot be written"),
        ("[options]\nmax_rounds = 4\ntools = ['none.py']", "{folder}/none.py: no such file"),
        ("[options]\nmax_rounds = 4\n[mcpServers.a]\ncommand = ''", "{config}: mcpServers.a.command"),
        (None, "{config}: No such file or directory"),
    ],
)
async def test_nothing_of_a_wrong_file_is_used(
    world: World, make: Make, caplog: Log, text: str | None, message: str
) -> None:
    await world.start(make, "[options]\nmax_rounds = 3\ntools = ['tools.py']")
    await world.look()
    messages(caplog)
    world.config.unlink() if text is None else world.write(world.config, text)
    await world.look()
    (found,) = messages(caplog)
    assert found.startswith(message.format(config=world.config, folder=world.config.parent)), found
    assert (world.runtime.settings.max_rounds, world.names()) == (3, ["one"])
    assert world.hooks.options.graft_max_rounds == "3"
    assert world.hooks.options.graft_filter == ""
    world.write(world.config, "[options]\nmax_rounds = 5\ntools = ['tools.py']")
    await world.look()
    assert (world.runtime.settings.max_rounds, world.names()) == (5, ["one"])


@pytest.mark.parametrize(
    ("text", "name", "content"),
    [
        ("[options]\nmax_rounds = 4\ntools = ['late.py']", "late.py", TOOL.format(name="one")),
        ("[options]\nmax_rounds = 4\nmcp = ['late.json']", "late.json", '{"mcpServers": {}}'),
        ("options.max_rounds = 4\nsessions.a.toolset = 'late.json'", "late.json", "[]"),
    ],
)
async def test_a_file_that_was_missing_is_waited_for(
    world: World, make: Make, text: str, name: str, content: str
) -> None:
    await world.start(make, "[options]\nmax_rounds = 3")
    world.write(world.config, text)
    await world.look()
    assert world.runtime.settings.max_rounds == 3
    (world.config.parent / name).write_text(content)
    await world.look()
    assert world.runtime.settings.max_rounds == 4


async def test_options_that_need_a_restart_are_named_and_the_others_hold(world: World, make: Make, caplog: Log) -> None:
    await world.start(make, "[options]\nmax_rounds = 3\nttl = 100\n")
    await world.look()
    messages(caplog)
    world.write(world.config, "modes = ['regular@9000']\n[options]\nmax_rounds = 4\nttl = 200\nmax_body = 5000\n")
    await world.look()
    assert (world.runtime.settings.max_rounds, world.runtime.settings.ttl) == (4, 100)
    assert messages(caplog) == [
        f"{world.config} has changed, and holds from now on: max_rounds",
        f"{world.config} has changed, but a restart of the proxy is needed for: ttl, max_body, modes",
    ]
    world.write(world.config, "[options]\nmax_rounds = 4\nttl = 100\n")
    await world.look()
    assert messages(caplog) == []


async def test_the_command_line_still_outranks_the_file(world: World, make: Make) -> None:
    await world.start(make, "")
    lifecycle = world.hooks.lifecycle
    lifecycle.file_options = replace(lifecycle.file_options, given={"graft_max_rounds": "command line"})
    world.write(world.config, "[options]\nmax_rounds = 3\nparallel = 3\n")
    await world.look()
    assert (world.runtime.settings.max_rounds, world.runtime.settings.parallel) == (10, 3)


async def test_what_the_user_has_changed_in_mitmproxy_stays_unless_the_file_changes_it(
    world: World, make: Make
) -> None:
    await world.start(make, "[options]\nmax_rounds = 3\n")
    world.hooks.set(max_rounds="7")
    world.write(world.config, "[options]\nmax_rounds = 3\nparallel = 3\n")
    await world.look()
    assert (world.runtime.settings.max_rounds, world.runtime.settings.parallel) == (7, 3)


async def test_sessions_that_the_store_cannot_take_now_are_set_later(
    world: World, make: Make, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(make, "")
    await world.look()
    messages(caplog)

    async def fails(*arguments: Any) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(world.runtime.store, "put_policy", fails)
        world.write(world.config, "[sessions.work]\nmax_rounds = 4\n")
        await world.look()
        assert await world.policy("work") is None
    assert "the sessions work cannot be set now: gone" in messages(caplog)
    await world.look()
    assert await world.policy("work") == Policy(max_rounds=4)


async def test_a_toolset_file_is_watched_as_well(world: World, make: Make) -> None:
    file = world.config.parent / "work.json"
    file.write_text(json.dumps([{"name": "a"}]))
    await world.start(make, '[sessions.work]\ntoolset = "work.json"\n')
    await world.look()
    world.write(file, json.dumps([{"name": "b"}]))
    await world.look()
    record = (await world.runtime.store.snapshot("work")).record
    assert record is not None
    assert record.toolset is not None
    assert [one["name"] for one in record.toolset.declarations] == ["b"]


async def test_with_reload_off_nothing_is_applied(world: World, make: Make, caplog: Log) -> None:
    await world.start(make, "[options]\nreload = false\ntools = ['tools.py']\n")
    messages(caplog)
    world.write(world.tools, TOOL.format(name="two"))
    await world.look()
    assert world.names() == ["one"]
    assert messages(caplog) == []


async def test_the_running_proxy_says_where_each_setting_is_set(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "hidden")
    await world.start(make, "[options]\nmax_rounds = 3\nparallel = 2\nfilter = '~u x'")
    world.hooks.set(parallel="4")

    def rows() -> dict[str, tuple[str, str]]:
        return {row["name"]: (row["value"], row["source"]) for row in world.runtime.setting_rows()}

    found = rows()
    assert found["graft_config"] == (str(world.config), "command line")
    assert found["graft_max_rounds"] == ("3", str(world.config))
    assert found["graft_filter"] == ("~u x", str(world.config))
    assert found["graft_parallel"] == ("4", "changed while it runs")
    assert found["graft_token"] == ("***", "TOOLGRAFT_TOKEN")
    assert found["graft_tools"] == ("", "default")
    world.write(world.config, "[options]\n\n\nmax_rounds = 5\n")
    await world.look()
    found = rows()
    assert found["graft_max_rounds"] == ("5", str(world.config))
    assert found["graft_filter"] == ("", "default")
