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


def is_interactive() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def print_table(columns: Sequence[str], rows: Sequence[Sequence["str | Text"]]) -> None:
    """A table with one line per row. On a terminal, columns that are too wide are cut, but never the first, which holds
    what other commands take; columns without any value are left out."""
    from rich.table import Table

    filled = [at for at in range(len(columns)) if not rows or any(len(row[at]) for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at in filled:
        widest = max((len(row[at]) for row in rows), default=0) if at == 0 else None
        table.add_column(columns[at], no_wrap=True, overflow="ellipsis", min_width=widest)
    for row in rows:
        table.add_row(*(row[at] for at in filled))
    console().print(table)


def print_line(item: Any) -> None:
    """One item of a list that is watched: a row of a table, whose empty cells are left out, or a JSON document."""
    if not isinstance(item, list):
        print_json(item, indent=None)
        return
    console().print(*(cell for cell in item if len(cell)), sep="  ", soft_wrap=True)
