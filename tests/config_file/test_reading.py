"""A toolgraft.toml: what it sets, and one sentence for each kind of error."""

import json
from pathlib import Path

import pytest

from addon.config_file.reading import ConfigError, ConfigFile, load_config, parse_config
from store.models import Policy


def parse(folder: Path, text: str) -> ConfigFile:
    return parse_config(folder / "toolgraft.toml", text.encode())


def test_all_that_a_file_can_set(tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text(json.dumps([{"name": "get_time"}]))
    found = parse(
        tmp_path,
        """
modes = ["regular@8080", "reverse:http://127.0.0.1:9@8081"]

[options]
max_rounds = 5
ttl = 3600.5
stream = false
tools = ["tools.py", "/abs.py"]
record = "out.mitm"
allow_hosts = ["a.example"]

[mcpServers.time]
command = "false"

[sessions.work]
delivery = "hold"
tool_choice = "none"
[[sessions.work.tools]]
name = "get_weather"
approval = true
parameters = { type = "object", properties.city.type = "string" }

[sessions.more]
toolset = "more.json"

[sessions.plain]
""",
    )
    assert found.options == {
        "graft_max_rounds": "5",
        "graft_ttl": "3600.5",
        "graft_stream": "off",
        "graft_tools": [str(tmp_path / "tools.py"), "/abs.py"],
        "graft_record": str(tmp_path / "out.mitm"),
        "graft_allow_hosts": ["a.example"],
    }
    assert found.modes == ("regular@8080", "reverse:http://127.0.0.1:9@8081")
    assert found.programs == [f"runs {tmp_path}/tools.py", "runs /abs.py", "MCP server time: false"]
    work, more, plain = (found.sessions[name] for name in ("work", "more", "plain"))
    assert work.policy == Policy(delivery="hold")
    assert work.toolset is not None
    assert [one["name"] for one in work.toolset.declarations] == ["get_weather"]
    assert work.toolset.rules["get_weather"].approval
    assert work.toolset.tool_config == {"functionCallingConfig": {"mode": "NONE"}}
    assert more.toolset is not None
    assert [one["name"] for one in more.toolset.declarations] == ["get_time"]
    assert plain.toolset is None
    assert found.files == (tmp_path / "more.json",)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert parse(tmp_path, "") == ConfigFile(tmp_path / "toolgraft.toml")


WRONG = {
    "mods = []": "mods is unknown; did you mean modes?",
    "delivery = 'hold'": "delivery is unknown; did you mean delivery below [options]?",
    "xyz = 1": "xyz is unknown; known are modes, options, mcpServers, sessions",
    "modes = 'regular'": 'modes is a text; must be a list of texts, such as ["…"]',
    "modes = []": "modes is empty; an example is",
    "modes = [\n'regular',\n'x']": "modes: 'x' is not a mode of mitmproxy: unknown mode",
    "options = 1": "options is a number; must be a table, such as [options]",
    "[options]\nmax_round = 1": "options.max_round is unknown; did you mean max_rounds?",
    "[options]\ngraft_delivery = 'hold'": "options.graft_delivery is unknown; did you mean delivery?",
    "[options]\nxyz = 1": "options.xyz is unknown; docs/options.md lists the options, without graft_",
    "[options]\nconfig = 'x'": "options.config is unknown",
    "[options]\n\nmax_rounds = 0": "options.max_rounds='0': must be a number from 1 to 100",
    "options.delivery = 'fax'": "options.delivery='fax': must be one of auto, placeholder, loop, hold, passthrough",
    "[options]\ndelivery = ['hold']": "options.delivery is a list; must be one text, number or true or false",
    "[options]\ntools = 'a.py'": "options.tools is a text; must be a list of texts",
    "[options]\ntools = [\n'a.py',\n1]": "options.tools: item 2 is a number; must be a text",
    "[options]\nttl = 2020-01-01": "options.ttl must not be a date or time: write it as a text, in quotation marks",
    "[options]\nttl = inf": "options.ttl must be a finite number",
    "[options]\ntoken = 'a b'": "options.token=(not shown): must be printable ASCII without spaces",
    "[options]\nredirect = ['x']": "options.redirect: 'x' must be HOST=URL",
    "[options]\nsession = '\\u0000'": "options.session",
    "[sessions.'a b']": "sessions: 'a b': the name of a session must be a name of the form",
    "sessions.work = 1": "sessions.work is a number; must be a table, such as [sessions.work]",
    "[sessions.work]\ndelivry = 'hold'": "sessions.work.delivry is unknown; did you mean delivery?",
    "[sessions.work]\ndelivery = 'fax'": "sessions.work.delivery='fax': must be one of auto,",
    "[sessions.work]\nmax_rounds = 101": "sessions.work.max_rounds: must be a number from 1 to 100",
    "[sessions.work]\nmax_rounds = [1]": "sessions.work.max_rounds: must be a number from 1 to 100",
    "[sessions.a]\ntools = 1": "sessions.a.tools must be a list",
    "[[sessions.a.tools]]\nname = 'x'\n[[sessions.a.tools]]\nname = 'x'": "sessions.a.tools[1].name is 'x', as is",
    "[sessions.a]\n[[sessions.a.tools]]\nname = 'x'\nparameters = 1": "sessions.a.tools[0].parameters must be an",
    "[[sessions.a.tools]]\nname = 'x'\n[sessions.a.tools.executor]\ntype = 'http'\nurl = 'x'": "sessions.a.tools[0]",
    "[sessions.a]\ntool_choice = 'none'": "sessions.a.tools is missing; it is a list, and may be empty",
    "[sessions.a]\ntoolset = 'none.json'": "sessions.a.toolset",
    "[sessions.a]\ntools = []\ntoolset = 'a.json'": "sessions.a.toolset does not go with tools: use one of them",
    "[mcpServers.x]\ncommand = 'x'\nurl = 'http://a'": "mcpServers.x: it must have either command (stdio) or url",
    "[mcpServers.x]\n\ncomand = 'x'": "mcpServers.x.comand: is unknown; known fields: type, command",
    "[mcpServers.x]\ncommand = 'x'\nargs = [\n'${NO_SUCH_VARIABLE}']": "mcpServers.x.args.0: the environment",
    "mcpServers = []": "mcpServers is a list; must be a table, such as [mcpServers]",
    "a = 1\na = 2": "not TOML: Cannot overwrite a value",
    "[options]\nsession =": "not TOML: Invalid value",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_error_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as found:
        parse(tmp_path, text)
    message = str(found.value)
    assert message.startswith(f"{tmp_path}/toolgraft.toml: {WRONG[text]}"), message
    assert message.isprintable()


def test_a_file_that_is_not_utf_8_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toolgraft.toml"
    with pytest.raises(ConfigError, match=r"toolgraft\.toml: No such file"):
        load_config(path)
    path.write_bytes(b"a = 1\nb = '\xff'")
    with pytest.raises(ConfigError, match=r"toolgraft\.toml: not UTF-8"):
        load_config(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_names_cannot_forge_a_line_of_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as found:
        parse(tmp_path, '"a\\u001b[31m\\nb" = 1')
    assert str(found.value).isprintable()
