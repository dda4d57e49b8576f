"""Commands and flags that were removed: each ends the start with a sentence that says what to use."""

from collections.abc import Sequence
from typing import Any

import pytest
from typer.main import get_command

from addon import __main__ as command
from addon.__main__ import REMOVED_COMMANDS
from addon.cli.app import app


@pytest.fixture(autouse=True)
def removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED_COMMANDS, "--gone", "use --config")
    monkeypatch.setitem(REMOVED_COMMANDS, "store gone", "use toolgraft backup")


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


@pytest.mark.parametrize("name", list(REMOVED_COMMANDS))  # as they are without the fixture
def test_what_was_removed_is_refused_and_not_there_any_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["serve", name, "4"] if name.startswith("--") else name.split()
    monkeypatch.setattr("sys.argv", ["toolgraft", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == f"toolgraft: {name} was removed: {REMOVED_COMMANDS[name]}"
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
