import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from addon.tools.base import ServerState
from tests.cli.conftest import Cli, Proxy

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.\nNow.",
    "parameters": {"type": "OBJECT"},
}
DOCUMENTS = {
    "the API's own form": {"tools": [{"functionDeclarations": [WEATHER]}], "tool_choice": "required"},
    "a list of tools": [WEATHER],
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
@pytest.mark.parametrize("stdin", [True, False], ids=["stdin", "file"])
def test_tools_are_set_from(cli: Cli, proxy: Proxy, tmp_path: Path, document: Any, stdin: bool) -> None:
    text = json.dumps(document)
    (tmp_path / "tools.json").write_text(text)
    if stdin:
        result = cli("tools", "set", "-", stdin=text)
    else:
        result = cli("tools", "set", str(tmp_path / "tools.json"))
    assert result.stdout == "session default: get_weather\n"
    session = proxy.run(proxy.store.session("default"))
    assert session is not None
    assert session.toolset is not None
    assert [d["name"] for d in session.toolset.declarations] == ["get_weather"]


def test_the_json_of_show_can_be_set_again(cli: Cli, proxy: Proxy) -> None:
    document = {"tools": [WEATHER, {"googleSearch": {}}], "tool_choice": "required"}
    cli("tools", "set", "-", "--session", "a", stdin=json.dumps(document))
    output = cli("tools", "show", "--session", "a", "--json").stdout
    assert cli("tools", "set", "-", "--session", "b", "--json", stdin=output).stdout == output


def test_show_is_a_table_of_names_and_first_lines(cli: Cli, proxy: Proxy) -> None:
    cli("tools", "set", "-", stdin=json.dumps({"tools": [WEATHER, {"googleSearch": {}}], "tool_choice": "none"}))
    lines = [line.split() for line in cli("tools", "show").stdout.splitlines()]
    assert lines == [
        ["TOOL", "DESCRIPTION"],
        ["get_weather", "The", "weather", "of", "a", "city."],
        ["googleSearch", "built", "in"],
        ["tool", "config:", '{"functionCallingConfig":', '{"mode":', '"NONE"}}'],
    ]


def test_show_has_the_tools_of_the_proxy_s_files_and_servers(cli: Cli, proxy: Proxy) -> None:
    proxy.shared.append({"name": "get_time", "description": "The time."})
    assert "get_time" in cli("tools", "show").stdout
    cli("tools", "set", "-", stdin=json.dumps([WEATHER]))
    assert all(name in cli("tools", "show").stdout for name in ("get_time", "get_weather"))
    output = cli("tools", "show", "--json").stdout
    assert cli("tools", "set", "-", "--json", stdin=output).stdout == output
    cli("tools", "clear")
    output = json.loads(cli("tools", "show", "--json").stdout)
    assert output == {"tools": None, "tool_config": None, "shared": proxy.shared, "origins": {}}


def test_clear_takes_one_session_s_tools_only(cli: Cli, proxy: Proxy) -> None:
    for session in ("a", "b"):
        cli("tools", "set", "-", "--session", session, stdin=json.dumps([WEATHER]))
    assert cli("tools", "clear", "--session", "a").stdout == "session a: its own tools are removed\n"
    assert "session a has no toolset" in cli("tools", "show", "--session", "a", status=1).stderr
    assert "get_weather" in cli("tools", "show", "--session", "b").stdout


def test_the_session_comes_from_the_environment_too(cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGRAFT_SESSION", "mine")
    cli("tools", "set", "-", stdin=json.dumps([WEATHER]))
    assert proxy.run(proxy.store.session("mine")) is not None
    assert proxy.run(proxy.store.session("default")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"tools": [\n  {"name": }\n]}', "line 2, column 12: not JSON"),
        (b"", "line 1, column 1: not JSON"),
        (b'{"tools": NaN}', "NaN is not a JSON number"),
        (b'{"tools": "\xff"}', "not UTF-8 at byte 11"),
        (b"[" * 200_000, "nested too deeply"),
    ],
    ids=["a slip", "nothing", "NaN", "bytes", "depth"],
)
def test_a_file_that_is_not_json_is_refused_with_the_place(cli: Cli, tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "tools.json"
    file.write_bytes(text)
    result = cli("tools", "set", str(file), status=1)
    assert f"toolgraft: {file}" in result.stderr
    assert message in result.stderr
    assert result.stdout == ""


def test_a_tool_that_the_proxy_refuses_is_told_in_its_words(cli: Cli, proxy: Proxy) -> None:
    result = cli("tools", "set", "-", status=1, stdin='[{"name": "not a name!"}]')
    assert result.stderr.startswith("toolgraft: ")
    assert "not a name!" in result.stderr
    assert result.stderr.count("\n") == 1
    assert proxy.run(proxy.store.session("default")) is None


def test_a_file_that_is_not_there_is_named(cli: Cli, tmp_path: Path) -> None:
    assert f"{tmp_path / 'no'}: No such file" in cli("tools", "set", str(tmp_path / "no"), status=1).stderr


def test_tools_that_are_held_back_are_shown_and_accepted(proxy: Proxy, cli: Cli) -> None:
    for word in ("one", "two\x1b[2J"):
        tools = {name: {"description": f"{name} {word}"} for name in ("read", "write")}
        proxy.pins.update("files", tools, lambda: None)
    output = cli("tools", "held")
    assert '  - "description": "read one"\n  + "description": "read two\\u001b[2J"\n' in output.stdout
    assert "2 tools are held back" in output.stderr
    assert [one["tool"] for one in json.loads(cli("tools", "held", "--json").stdout)] == ["read", "write"]
    assert "files/read: accepted" in cli("tools", "accept", "files/read").stdout
    assert "1 tool is held back" in cli("tools", "held").stderr
    assert "held back: files/write" in cli("tools", "accept", "files/read", status=1).stderr
    cli("tools", "accept", status=2)
    assert "files/write: accepted" in cli("tools", "accept", "--all").stdout
    assert "0 tools are held back" in cli("tools", "held").stderr


@pytest.fixture
def servers(proxy: Proxy) -> list[str]:
    """The MCP servers that were restarted. There is `files`, which was down."""
    restarts: list[str] = []

    def states() -> Sequence[ServerState]:
        return [ServerState("files", True, 3, last_error="the connection\nhas ended", last_error_at=7.0)]

    async def restart(server: str) -> bool:
        restarts.append(server)
        return server == "files"

    proxy.app.api.server_states, proxy.app.api.restart_server = states, restart
    return restarts


def test_a_server_is_restarted(cli: Cli, servers: list[str]) -> None:
    assert cli("tools", "restart", "files").stdout == "files: up, 3 tools\n"
    assert json.loads(cli("tools", "restart", "files", "--json").stdout)["is_up"]
    stderr = cli("tools", "restart", "a/b", status=1).stderr
    assert stderr == "toolgraft: there is no MCP server a/b; there are: files\n"
    assert servers == ["files", "files", "a/b"]


def test_the_last_error_of_a_server_is_in_the_status(cli: Cli, servers: list[str]) -> None:
    (line,) = (line for line in cli("status").stdout.splitlines() if "MCP server" in line)
    assert line.startswith("  MCP server files: up, 3 tools; last error at ")
    assert line.endswith(r": the connection\nhas ended")
