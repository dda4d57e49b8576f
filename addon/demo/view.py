"""The demo's output: each exchange as four panes, with the proxy's changes marked as in a diff.

Colours only repeat the marks, so the output is complete without them.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from addon.demo.stage import Json, Stage
from addon.demo.story import Beat, Chart, Control, Exchange, Held, Moment, Rewritten, Scene, Span, parts

WIDEST = 120


class Row(NamedTuple):
    """A line of a pane. `mark`: "+" added by the proxy, "-" removed by the proxy, " " unchanged."""

    mark: str
    who: str
    what: str


_STYLES = {"+": "green", "-": "red"}
_PLACES = {"client": "bold", "Gemini": "magenta", "tool": "cyan"}
_BAR = 28


class View:
    """Shows beats on a console, one after another."""

    def __init__(self, console: Console) -> None:
        self.console = console
        console.width = min(console.width, WIDEST)
        self._scenes = 0

    def opening(self, stage: Stage) -> None:
        self._print(Text("toolgraft: tools for a Gemini client that does not know them", style="bold"))
        self._print(Text(f"proxy {stage.proxy}, in front of a strict local Gemini, {stage.gemini.url}"))
        self._print(Text(f"control API {stage.control}"))
        added, removed = ("+", _STYLES["+"]), ("-", _STYLES["-"])
        self._print(Text.assemble(added, " added by the proxy   ", removed, " removed by the proxy"))

    def show(self, beat: Beat) -> None:
        match beat:
            case Scene(title, words):
                self._scenes += 1
                self._print()
                self._print(Rule(Text(f"{self._scenes}. {title}", style="bold"), align="left", style="dim"))
                self._print(Text(words))
            case Control(request, outcome):
                self._line(Text(request, style="cyan"), Text(outcome))
            case Exchange():
                self._print(panes(beat))
            case Held(sentence):
                self._line(Text("checked:", style="green"), Text(sentence))
            case Moment():
                self._print(Group(moment_line(beat)))  # a bare Text would be wrapped
            case Rewritten(sent, got):
                self._print(side("the client sent", request_rows(sent, got, "-")))
                self._print(side("Gemini got", request_rows(got, sent, "+")))
            case Chart(spans):
                self._print(chart(spans))

    def closing(self, following: str) -> None:
        """`following`: the suggested next step."""
        self._print()
        self._print(Text("All checks passed.", style="bold green"))
        self._print(Text(f"Next: {following}"))

    def _line(self, *cells: Text) -> None:
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells)
        self._print(Padding(line, (0, 0, 0, 2), expand=False))

    def _print(self, what: RenderableType = "") -> None:
        self.console.print(what)


def panes(exchange: Exchange) -> Table:
    """The client on the left, Gemini on the right; requests above, answers below."""
    table = Table(box=ROUNDED, show_header=False, show_lines=True, expand=True, border_style="dim")
    table.add_column(ratio=1, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    sent, got = exchange.client_sent, exchange.gemini_got
    saw, answered = exchange.client_saw, exchange.gemini_answered
    table.add_row(
        _pane("1 the client sent", request_rows(sent, got, "-")),
        _pane("2 Gemini got", request_rows(got, sent, "+")),
    )
    table.add_row(
        _pane("4 the client saw", answer_rows(saw, answered, "+")),
        _pane("3 Gemini answered", answer_rows(answered, saw, "-")),
    )
    return table


def request_rows(request: Json, other: Json, mark: str) -> Iterator[Row]:
    """A request's tools and history. Rows that the other request does not have get the mark."""
    others = list(_declared(other))
    for tool in _declared(request):
        yield Row(" " if tool in others else mark, "tool", _signature(tool))
    known = [part for content in other["contents"] for part in content["parts"]]
    for content in request["contents"]:
        for part in content["parts"]:
            yield Row(" " if part in known else mark, content.get("role", "user"), described(part))


def answer_rows(answers: list[Json], others: list[Json], mark: str) -> Iterator[Row]:
    """An answer's parts, event by event."""
    known = list(parts(*others))
    for number, answer in enumerate(answers, 1):
        for candidate in answer.get("candidates", []):
            who = f"event {number}" if len(answers) > 1 else candidate["content"]["role"]
            for part in candidate["content"]["parts"]:
                yield Row(" " if part in known else mark, who, described(part))
                who = ""
            if reason := candidate.get("finishReason"):
                yield Row(" ", who, f"finishReason {reason}")


def described(part: Json) -> str:
    """A short form of a part."""
    signed = ", signed" if "thoughtSignature" in part else ""
    if call := part.get("functionCall"):
        return f"call {call['name']} {_compact(call.get('args', {}))}{signed}"
    if response := part.get("functionResponse"):
        return f"result of {response['name']} {_compact(response['response'])}"
    return part.get("text") or f"(no text{signed})"


def moment_line(moment: Moment) -> Text:
    """One line: time, place, event."""
    style = _PLACES.get(moment.who, "")
    return _clipped((f"{moment.at:6.3f} ", "dim"), (f"{moment.who:<6} ", style), (moment.what, ""))


def side(title: str, rows: Iterator[Row]) -> RenderableType:
    """The rows of one side under a title, one line each."""
    return Group(Text(title, style="bold"), *(_row_line(row) for row in rows))


def _row_line(row: Row) -> Text:
    style = _STYLES.get(row.mark, "")
    return _clipped((f"  {row.mark} ", style), (f"{row.who:<5} ", "dim"), (row.what, style))


def _clipped(*pieces: tuple[str, str]) -> Text:
    """One line, cut to the width."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for words, style in pieces:
        line.append(words.replace("\n", " "), style)
    return line


def chart(spans: list[Span]) -> Table:
    """A bar for each span, on a common scale."""
    grid = Table.grid(padding=(0, 1), pad_edge=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=34)
    grid.add_column(width=_BAR, no_wrap=True)
    grid.add_column(no_wrap=True)
    scale = (_BAR - 1) / max(span.end for span in spans)
    for span in spans:
        start, end = round(span.start * scale), round(span.end * scale)
        bar = " " * start + "=" * (end - start + 1)
        grid.add_row(Text(span.name), Text(bar, style="cyan"), Text(f"{span.start:.2f}-{span.end:.2f}", style="dim"))
    return grid


def _pane(title: str, rows: Iterator[Row]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, who, what in rows:
        style = _STYLES.get(mark, "")
        grid.add_row(Text(mark, style=style), Text(who, style="dim"), Text(what, style=style))
    return Group(Text(title, style="bold"), grid)


def _declared(request: Json) -> Iterator[Json]:
    for tool in request.get("tools", []):
        yield from tool.get("functionDeclarations", [])


def _signature(tool: Json) -> str:
    return f"{tool['name']}({', '.join(tool.get('parameters', {}).get('properties', {}))})"


def _compact(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)
