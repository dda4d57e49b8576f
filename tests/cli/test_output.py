"""Tables on terminals of any width."""

import pytest
from rich.console import Console

from addon.cli import output

COLUMNS = ("CALL", "STATUS", "TIME", "NAME", "ARGUMENTS")
ID = "call_0123456789abcdef01234567"


@pytest.fixture
def table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> list[str]:
    """The lines of a table on a terminal of this width."""
    console = Console(highlight=False, markup=False, emoji=False, width=request.param)
    monkeypatch.setattr(output, "console", lambda: console)
    rows = [(ID, "pending", "12:00:00", "get_the_weather", "word " * 1000), (ID, "done", "12:00:01", "add", "")]
    output.print_table(COLUMNS, rows, ("TIME",))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("table", [160, 100, 80], indirect=True)
def test_wide_columns_are_cut_and_none_vanishes(table: list[str]) -> None:
    header, pending, done = table
    assert header.split() == list(COLUMNS)
    assert pending.split()[:3] == [ID, "pending", "12:00:00"]
    assert "word" in pending
    assert pending.endswith("…")
    assert done.split() == [ID, "done", "12:00:01", "add"]
    assert max(map(len, table)) <= 160


@pytest.mark.parametrize("table", [65], indirect=True)
def test_where_that_does_not_suffice_a_column_is_left_out(table: list[str]) -> None:
    header, pending, _ = table
    assert header.split() == ["CALL", "STATUS", "NAME", "ARGUMENTS"]
    assert pending.split()[0] == ID
    assert max(map(len, table)) <= 65
    assert "12:00:00" not in pending


@pytest.mark.parametrize("table", [20], indirect=True)
def test_an_id_is_whole_on_any_terminal(table: list[str]) -> None:
    assert table[1].startswith(ID)


def test_a_long_value_is_whole_in_a_pipe_and_does_not_widen_the_other_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [(ID, "done", "x" * 100_000, "1"), (ID, "failed", "", "2")]
    output.print_table(("CALL", "STATUS", "ARGUMENTS", "N"), rows)
    header, long, short = capsys.readouterr().out.splitlines()
    assert long == f"{ID}  done    {'x' * 100_000}  1"
    assert (short.split(), len(short) < 120) == ([ID, "failed", "2"], True)
    assert header.index("ARGUMENTS") == long.index("xxx")
