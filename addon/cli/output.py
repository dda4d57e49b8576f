"""The commands' output: JSON and tables on stdout, one line per error on stderr."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from addon.core.security.escaping import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def fail(message: str) -> NoReturn:
    """End the command with exit status 1 and one message."""
    note(message)
    raise typer.Exit(1)


def note(message: str) -> None:
    typer.echo(f"toolgraft: {plain(message)}", err=True)


def plain(text: str) -> str:
    """The text on one line, with unprintable characters escaped: names and arguments come from a model."""
    return printable(text)


def print_json(document: Any, *, indent: int | None = 2) -> None:
    typer.echo(printable_json(json.dumps(document, indent=indent, ensure_ascii=False)))


def compact(document: Any) -> str:
    return plain(json.dumps(document, ensure_ascii=False))


def console() -> "Console":
    """A console for stdout. In a pipe, lines are neither wrapped nor cut."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 1_000_000
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_table(columns: Sequence[str], rows: Sequence[Sequence["str | Text"]]) -> None:
    """A table with one line per row. On a terminal, a last column that is too wide is cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis" if column == columns[-1] else "fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
