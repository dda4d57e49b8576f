"""Options and commands that were removed: each end the start with a sentence that says what to use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from addon import __main__ as command
from addon.__main__ import REMOVED
from addon.cli.app import app
from addon.config_file.reading import ConfigError, load_config
from addon.options import REMOVED as REMOVED_OPTIONS
from addon.options import parse_options


@pytest.fixture(autouse=True)
def removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED, "--gone", "use --config")
    monkeypatch.setitem(REMOVED, "store gone", "use toolgraft backup")
    monkeypatch.setitem(REMOVED_OPTIONS, "graft_gone", "use graft_session")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve", "--gone", "4"], "--gone was removed: use --config"),
        (["serve", "--set", "graft_store=memory://", "--gone=4"], "--gone was removed: use --config"),
        (["store", "gone", "redis://host"], "store gone was removed: use toolgraft backup"),
    ],
)
def test_a_removed_flag_or_command_ends_the_start(
    words: Sequence[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["toolgraft", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == f"toolgraft: {sentence}"


@pytest.mark.parametrize("name", list(REMOVED))  # as they are without the fixture
def test_what_was_removed_is_refused_and_not_there_any_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["serve", name, "4"] if name.startswith("--") else name.split()
    monkeypatch.setattr("sys.argv", ["toolgraft", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == f"toolgraft: {name} was removed: {REMOVED[name]}"
    with pytest.raises(LookupError):
        find_command(name.split())


def find_command(words: Sequence[str]) -> None:
    """Raises KeyError if there is no such command."""
    found: Any = get_command(app)
    for word in words:
        found = found.commands[word]


def test_the_arguments_of_other_programs_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["toolgraft", "run", "--", "client", "--gone"])
    monkeypatch.setattr("addon.cli.app.main", lambda: None)
    command.main()


def test_a_removed_option_is_refused_wherever_it_is_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^graft_gone was removed: use graft_session$"):
        parse_options(["graft_gone=1"])
    file = tmp_path / "toolgraft.toml"
    file.write_text("[options]\ngone = 1\n")
    with pytest.raises(ConfigError, match=r"options\.gone was removed: use graft_session$"):
        load_config(file)
