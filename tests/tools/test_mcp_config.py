"""The mcpServers file."""

import json
from pathlib import Path
from typing import Any

import pytest

from addon.tools.base import SourceError
from addon.tools.mcp_config import Selection, Server, read_servers


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_the_usual_file_and_what_is_added_to_it_are_read(tmp_path: Path) -> None:
    document = {
        "globalShortcut": "another client's",
        "mcpServers": {
            "files": {"command": "npx", "args": ["-y", "files"], "env": {"A": "b"}, "cwd": "/srv", "type": "stdio"},
            "web": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer t"}, "type": "http"},
            "old": {
                "httpUrl": "http://localhost:1/mcp",
                "prefix": "old_",
                "tools": ["a", "b"],
                "timeout": 5,
                "rules": {"a": {"retries": 2, "after": ["b"], "approval": True}},
            },
            "less": {"command": "x", "tools": {"exclude": ["c"]}},
            "off": {"command": "x", "args": ["${NOT_SET}"], "disabled": True},
        },
    }
    assert read_servers(written(tmp_path, document), {}) == {
        "files": Server(type="stdio", command="npx", args=["-y", "files"], env={"A": "b"}, cwd="/srv"),
        "web": Server(type="http", url="https://x.example/mcp", headers={"Authorization": "Bearer t"}),
        "old": Server(
            url="http://localhost:1/mcp",
            prefix="old_",
            tools=Selection(include=["a", "b"]),
            timeout=5,
            rules={"a": {"retries": 2, "after": ["b"], "approval": True}},  # type: ignore[dict-item]
        ),
        "less": Server(command="x", tools=Selection(exclude=["c"])),
    }


def test_variables_are_filled_in_where_they_are_named(tmp_path: Path) -> None:
    server = {
        "command": "${BIN}/run",
        "args": ["--key=${KEY}", "$KEY", "${WHO:-me}", "${EMPTY:-}"],
        "env": {"TOKEN": "${KEY}"},
        "cwd": "${BIN}",
        "description": "${KEY}",
    }
    found = read_servers(written(tmp_path, {"mcpServers": {"s": server}}), {"BIN": "/bin", "KEY": "k", "OTHER": "o"})
    assert found["s"] == Server(
        command="/bin/run",
        args=["--key=k", "$KEY", "me", ""],
        env={"TOKEN": "k"},
        cwd="/bin",
        description="${KEY}",
    )


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({}, "mcpServers.s: it must have either command (stdio) or url"),
        ({"command": "x", "url": "http://x/"}, "mcpServers.s: it must have either command (stdio) or url"),
        ({"command": "x", "headers": {"A": "b"}}, "mcpServers.s: headers does not go with command"),
        ({"url": "http://x/", "env": {"A": "b"}}, "mcpServers.s: env does not go with url"),
        ({"url": "http://x/", "type": "stdio"}, "mcpServers.s: type 'stdio' does not go with url"),
        ({"url": "http://x/", "type": "sse"}, "mcpServers.s.type: "),
        ({"url": "x.example"}, "mcpServers.s.url: must be an http or https URL with a host, such as https://"),
        ({"command": "x", "args": "y"}, "mcpServers.s.args: "),
        ({"command": "x", "args": [1]}, "mcpServers.s.args.0: "),
        ({"command": "x", "env": {"A": 1}}, "mcpServers.s.env.A: "),
        (
            {"command": "x", "comand": "y"},
            "mcpServers.s.comand: is unknown; known fields: type, command, args, ",
        ),
        ({"command": "x", "prefix": "a b"}, "mcpServers.s.prefix: must be letters, digits"),
        ({"command": "x", "timeout": 0}, "mcpServers.s.timeout: must be greater than 0"),
        (
            {"command": "x", "tools": {"only": []}},
            "mcpServers.s.tools.only: is unknown; known fields: include, exclude",
        ),
        (
            {"command": "x", "rules": {"t": {"retry": 1}}},
            "mcpServers.s.rules.t.retry: is unknown; known fields: timeout, retries, ",
        ),
        ({"command": "x", "rules": {"t": {"retries": -1}}}, "mcpServers.s.rules.t: retries is -1"),
        ({"command": "x", "env": {"A": "${NOT_SET}"}}, "mcpServers.s.env.A: the environment variable NOT_SET"),
        ({"command": "x", "args": ["a", "${NOT_SET}"]}, "mcpServers.s.args.1: the environment variable NOT_SET"),
        (5, "mcpServers.s: must be an object"),
    ],
    ids=str,
)
def test_a_server_that_does_not_fit_is_named_with_file_and_field(tmp_path: Path, server: Any, words: str) -> None:
    path = written(tmp_path, {"mcpServers": {"s": server}})
    with pytest.raises(SourceError) as raised:
        read_servers(path, {})
    assert str(raised.value).startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n "mcpServers": {,\n}', ": not JSON: "),
        ("[]", ": the document: must be an object"),
        ("{}", ": mcpServers: is missing"),
        ('{"mcpServers": []}', ": mcpServers: must be an object"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', ": the key 'a' is given twice"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SourceError) as raised:
        read_servers(path, {})
    assert str(raised.value).startswith(f"{path}{words}")


def test_the_field_of_an_error_is_named_in_json_and_toml(tmp_path: Path) -> None:
    path = written(tmp_path, '{\n "mcpServers": {\n  "s": {\n   "command": "x",\n   "timeout": 0\n  }\n }\n}')
    with pytest.raises(SourceError, match=r"mcp\.json: mcpServers\.s\.timeout: must be greater than 0"):
        read_servers(path, {})
    path = tmp_path / "mcp.toml"
    path.write_text("[mcpServers.s]\ncommand = 'x'\n\ntimeout = 0\n")
    with pytest.raises(SourceError, match=r"mcp\.toml: mcpServers\.s\.timeout: must be greater than 0"):
        read_servers(path, {})
    path.write_text("[mcpServers.s]\ncommand =\n")
    with pytest.raises(SourceError, match=r"mcp\.toml: not TOML: Invalid value"):
        read_servers(path, {})


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    """It was a traceback."""
    path = written(tmp_path, '{"mcpServers": {"s": ' + "[" * 100_000 + "]" * 100_000 + "}}")
    with pytest.raises(SourceError, match="nested too deeply"):
        read_servers(path, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.json: No such file"):
        read_servers(tmp_path / "none.json")


def test_values_are_kept_out_of_messages(tmp_path: Path) -> None:
    path = written(tmp_path, {"mcpServers": {"s": {"url": "http://x/", "headers": {"A": "${KEY}"}}}})
    with pytest.raises(SourceError) as raised:
        read_servers(path, {"KEY": "hidden\r\nvalue"})
    assert "hidden" not in str(raised.value)


def test_a_url_is_kept_out_of_messages(tmp_path: Path) -> None:
    path = written(tmp_path, {"mcpServers": {"s": {"url": "htps://x.example/${KEY}?key=${KEY}"}}})
    with pytest.raises(SourceError, match="must be an http or https URL with a host") as raised:
        read_servers(path, {"KEY": "hidden"})
    assert "hidden" not in str(raised.value)
