"""`toolgraft init`: five questions, one commented file that fits, and nothing overwritten."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from addon.cli import output
from addon.config_file.choice import chosen_file
from addon.config_file.reading import load_config, parse_config
from addon.config_file.template import Answers, config_text, quoted
from addon.options import OPTIONS
from tests.cli.conftest import Cli


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in the user's configuration folder. The working folder is an empty one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "configuration" / "toolgraft" / "toolgraft.toml"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_interactive", lambda: True)


def test_without_questions_it_writes_the_defaults_where_a_start_finds_them(cli: Cli, own: Path) -> None:
    done = cli("init", "--yes")
    assert done.stdout == f"{own} is written\nevery start of the proxy uses it: ./run_proxy.sh\n"
    assert chosen_file(None).path == own
    found = load_config(own)
    assert found.options == {"graft_client_tools": "strip", "graft_delivery": "auto"}
    assert found.modes == ("regular@8080", "reverse:https://generativelanguage.googleapis.com@8081")
    assert "nothing is wrong" in cli("config", "check").stdout


def test_a_file_or_a_link_is_never_overwritten(cli: Cli, own: Path, tmp_path: Path) -> None:
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    assert "exists already" in cli("init", "--yes", status=1).stderr
    assert own.read_text() == "mine"
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "elsewhere.toml")
    assert "exists already" in cli("init", "--yes", str(link), status=1).stderr
    assert not (tmp_path / "elsewhere.toml").exists()


def test_five_questions_are_asked(cli: Cli, own: Path, tmp_path: Path, terminal: None) -> None:
    (tmp_path / "work" / "tools.py").touch()
    (tmp_path / "mcp.json").touch()
    answers = ["maybe", "keep", "hold", "none.py", "tools.py", str(tmp_path / "mcp.json"), "0", "9001"]
    done = cli("init", stdin="".join(f"{answer}\n" for answer in answers))
    assert re.findall(r"\d/5", done.stderr) == ["1/5", "1/5", "2/5", "3/5", "3/5", "4/5", "5/5", "5/5"]
    found = load_config(own)
    assert found.options == {
        "graft_client_tools": "keep",
        "graft_delivery": "hold",
        "graft_tools": [str(tmp_path / "work" / "tools.py")],
        "graft_mcp": [str(tmp_path / "mcp.json")],
    }
    assert found.modes[1].endswith("@9001")


def test_a_file_of_the_working_folder_is_trusted_and_its_paths_start_from_there(
    cli: Cli, own: Path, tmp_path: Path, terminal: None
) -> None:
    (tmp_path / "work" / "tools.py").touch()
    done = cli("init", "toolgraft.toml", stdin="\n\ntools.py\n\n\n")
    assert "a start in this folder uses it" in done.stdout
    local = tmp_path / "work" / "toolgraft.toml"
    assert 'tools = ["tools.py"]' in local.read_text()
    assert chosen_file(None) == (local, True, None)


def test_without_a_terminal_it_says_how_to_take_the_defaults(cli: Cli, own: Path) -> None:
    assert "`toolgraft init --yes` takes the defaults" in cli("init", status=1).stderr
    assert not own.exists()


def test_every_combination_of_answers_gives_a_file_that_fits() -> None:
    names = ((), ('a "b" \\ ä\n.py',))
    for client_tools, delivery, files in itertools.product(("strip", "keep"), ("auto", "hold"), names):
        text = config_text(Answers(8080, client_tools, delivery, files, files))
        found = parse_config(Path("/x/toolgraft.toml"), text.encode())
        assert found.options["graft_delivery"] == delivery
        assert found.options.get("graft_tools", []) == [f"/x/{name}" for name in files]
        assert found.modes == ("regular@8081", "reverse:https://generativelanguage.googleapis.com@8080")


def test_every_commented_option_and_example_fits_as_well() -> None:
    text = config_text(Answers())
    bare = re.sub(r"^# ?(?=\w+ = |\[[\w.\[\]]+$)", "", text, flags=re.MULTILINE)
    found = parse_config(Path("/x/toolgraft.toml"), bare.encode())
    defaults = {option.name: option.default for option in OPTIONS}
    assert len(found.options) == 12
    for name, value in found.options.items():
        assert (list(defaults[name]) if isinstance(value, list) else defaults[name]) == value
    assert list(found.servers) == ["time"]
    assert found.sessions["work"].toolset is not None


@pytest.mark.parametrize("text", ["", "a", 'a"b\\', "\n\x00\x7f", "ä\u202e🙂"])
def test_a_text_is_quoted_for_toml(text: str) -> None:
    assert tomllib.loads(f"a = {quoted(text)}") == {"a": text}
