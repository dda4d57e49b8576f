"""The demo's output: each exchange as four panes, with the proxy's changes marked as in a diff.

Colours only repeat the marks, so the output is complete without them.
"""

import json
from collections.abc import Iterator
from typing import Any

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from addon.demo.stage import Json, Stage
from addon.demo.story import Beat, Control, Exchange, Held, Moment, Scene, parts

WIDEST = 120
LONGEST = 80
"""The most characters of a part that are shown."""
Row = tuple[str, str, str]
"""A line of a pane: mark, who, what. Marks: "+" added by the proxy, "-" removed by the proxy, " " unchanged."""

_STYLES = {"+": "green", "-": "red", "client": "bold", "Gemini": "magenta", "tool": "cyan"}


class View:
    """Shows beats on a console, one after another."""

    def __init__(self, console: Console) -> None:
        self._print = console.print
        console.width = min(console.width, WIDEST)
        self._scenes = 0

    def opening(self, stage: Stage) -> None:
        self._print(Text("toolgraft: tools for a Gemini client that does not know them", style="bold"))
        self._print(Text(f"proxy {stage.proxy}, in front of a strict local Gemini, {stage.gemini.url}"))
        self._print(Text(f"control API {stage.control}"))
        self._print(Text.assemble(("+", "green"), " added by the proxy   ", ("-", "red"), " removed by the proxy"))

    def show(self, beat: Beat) -> None:
        match beat:
            case Scene(title, words):
                self._scenes += 1
                self._print()
                self._print(Rule(Text(f"{self._scenes}. {title}", style="bold"), align="left", style="dim"))
                self._print(Text(words))
            case Control(request, outcome):
                self._line(Text(request, style="cyan"), Text(outcome))
            case Exchange(sent, got, answered, saw):
                table = Table(box=ROUNDED, show_header=False, show_lines=True, expand=True, border_style="dim")
                table.add_column(ratio=1, overflow="fold")
                table.add_column(ratio=1, overflow="fold")
                requests = request_rows(sent, got, "-"), request_rows(got, sent, "+")
                table.add_row(_pane("1 the client sent", requests[0]), _pane("2 Gemini got", requests[1]))
                answers = answer_rows(saw, answered, "+"), answer_rows(answered, saw, "-")
                table.add_row(_pane("4 the client saw", answers[0]), _pane("3 Gemini answered", answers[1]))
                self._print(table)
            case Held(sentence):
                self._line(Text("checked:", style="green"), Text(sentence))
            case Moment(at, who, what):
                line = Text(no_wrap=True, overflow="ellipsis").append(f"{at:6.3f} ", "dim")
                line.append(f"{who:<6} ", _STYLES.get(who, "")).append(what.replace("\n", " "))
                self._print(Group(line))  # a bare Text would be wrapped

    def closing(self, following: str) -> None:
        """`following`: the suggested next step."""
        self._print()
        self._print(Text("All checks passed.", style="bold green"))
        self._print(Text(f"Next: {following}"))

    def _line(self, *cells: Text) -> None:
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells)
        self._print(Padding(line, (0, 0, 0, 2), expand=False))


def request_rows(request: Json, other: Json, mark: str) -> Iterator[Row]:
    """A request's tools and history. Rows that the other request does not have get the mark."""
    others = list(_declared(other))
    for tool in _declared(request):
        parameters = ", ".join(tool.get("parameters", {}).get("properties", {}))
        yield " " if tool in others else mark, "tool", f"{tool['name']}({parameters})"
    known = [part for content in other["contents"] for part in content["parts"]]
    for content in request["contents"]:
        for part in content["parts"]:
            yield " " if part in known else mark, content.get("role", "user"), described(part)


def answer_rows(answers: list[Json], others: list[Json], mark: str) -> Iterator[Row]:
    """An answer's parts, event by event."""
    known = list(parts(*others))
    for number, answer in enumerate(answers, 1):
        for candidate in answer.get("candidates", []):
            who = f"event {number}" if len(answers) > 1 else candidate["content"]["role"]
            for part in candidate["content"]["parts"]:
                yield " " if part in known else mark, who, described(part)
                who = ""
            if reason := candidate.get("finishReason"):
                yield " ", who, f"finishReason {reason}"


def described(part: Json) -> str:
    """A short form of a part."""
    signed = ", signed" if "thoughtSignature" in part else ""
    if call := part.get("functionCall"):
        return f"call {call['name']} {_compact(call.get('args', {}))}{signed}"
    if response := part.get("functionResponse"):
        return f"result of {response['name']} {_compact(response['response'])}"
    return part.get("text") or f"(no text{signed})"


def _pane(title: str, rows: Iterator[Row]) -> Group:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, who, what in rows:
        style = _STYLES.get(mark, "")
        shortened = what if len(what) <= LONGEST else f"{what[:LONGEST]}…"
        grid.add_row(Text(mark, style=style), Text(who, style="dim"), Text(shortened, style=style))
    return Group(Text(title, style="bold"), grid)


def _declared(request: Json) -> Iterator[Json]:
    for tool in request.get("tools", []):
        yield from tool.get("functionDeclarations", [])


def _compact(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)
