"""The commands' output: JSON and tables on stdout, one line per error on stderr."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from addon.core.security.untrusted import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_GAP = 2
_NARROWEST = 8
"""Columns are not cut to fewer characters, so that a time is never cut."""
_UNLIMITED = 1_000_000
"""The width of a pipe."""
_WIDEST = 60
"""Columns are padded to at most this many characters in a pipe. Longer values do not widen the other rows."""


def fail(message: str) -> NoReturn:
    """End the command with exit status 1 and one message."""
    note(message)
    raise typer.Exit(1)


def note(message: str) -> None:
    typer.echo(f"toolgraft: {plain(message)}", err=True)


def plain(text: str) -> str:
    """The text on one line, with unprintable characters escaped, for names and arguments from a model."""
    return printable(text)


def plain_lines(text: str) -> str:
    """As `plain`, over several lines."""
    return printable(text, lines=True)


def count_of(number: int, noun: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_json(document: Any, *, indent: int | None = 2) -> None:
    typer.echo(printable_json(json.dumps(document, indent=indent, ensure_ascii=False)))


def compact(document: Any) -> str:
    return plain(json.dumps(document, ensure_ascii=False))


def console() -> "Console":
    """A console for stdout. In a pipe, it neither wraps nor cuts lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _UNLIMITED
    return Console(highlight=False, markup=False, emoji=False, width=width)


def is_interactive() -> bool:
    """Whether the user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def print_table(columns: Sequence[str], rows: Sequence[Sequence["str | Text"]], droppable: Sequence[str] = ()) -> None:
    """A table with one line per row, without empty columns. On a terminal, wide columns are cut, the widest first, but
    never the first column, which other commands take as an argument. If that does not suffice, the `droppable` columns
    are left out, in this order."""
    from rich.cells import cell_len
    from rich.table import Table

    out = console()
    widths = {
        at: max(map(cell_len, (column, *(str(row[at]) for row in rows))))
        for at, column in enumerate(columns)
        if not rows or any(len(row[at]) for row in rows)
    }
    if out.width == _UNLIMITED:
        for line in (columns, *rows):
            cells = (_padded(str(line[at]), min(width, _WIDEST)) for at, width in widths.items())
            typer.echo((" " * _GAP).join(cells).rstrip())
        return
    dropped = [columns.index(name) for name in droppable]
    while not (fits := _fit(widths, out.width)) and dropped:
        widths.pop(dropped.pop(0), None)
    if not fits:  # the terminal wraps the lines
        widths = {at: width if at == 0 else min(width, _NARROWEST) for at, width in widths.items()}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, width in widths.items():
        table.add_column(columns[at], no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        table.add_row(*(row[at] for at in widths))
    out.width = max(out.width, sum(widths.values()) + _GAP * len(widths))
    out.print(table)


def _padded(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))


def _fit(widths: dict[int, int], available: int) -> bool:
    """Narrow the columns, the widest first, until they fit. Returns False, and changes nothing, if they cannot."""
    flexible = [at for at in widths if at > 0]
    excess = sum(widths.values()) + _GAP * (len(widths) - 1) - available
    if excess > sum(max(0, widths[at] - _NARROWEST) for at in flexible):
        return False
    while excess > 0:
        widest = max(flexible, key=widths.__getitem__)
        second = max((widths[at] for at in flexible if at != widest), default=0)
        less = min(excess, max(1, widths[widest] - max(second, _NARROWEST)))
        widths[widest] -= less
        excess -= less
    return True


def print_line(item: Any) -> None:
    """One item of a watched list: a table row without its empty cells, or a JSON document."""
    if not isinstance(item, list):
        print_json(item, indent=None)
        return
    console().print(*(cell for cell in item if len(cell)), sep="  ", soft_wrap=True)
