"""`toolgraft calls` and `toolgraft result`: see what the model asked for, and answer it."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from addon.cli import options, output

if TYPE_CHECKING:
    from rich.text import Text

    from addon.cli.api import Api

Status = Literal["pending", "running", "done", "failed", "denied", "expired"]
COLUMNS = ("CALL", "STATUS", "TIME", "SESSION", "NAME", "ARGUMENTS")
_STYLES = {"pending": "yellow", "running": "cyan", "done": "green"}


def show(
    status: Annotated[Status | None, typer.Option(help="Only calls of this status.")] = None,
    name: Annotated[str | None, typer.Option(help="Only calls of this tool.", metavar="TOOL")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on, and show calls as they come and change.")
    ] = False,
    session: options.AnySession = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """List captured calls, newest last.

    With --watch each new call, and each change of one, is a line; with --json as well, one JSON document a line.
    """
    from addon.cli.api import Api

    with Api(url) as api:
        if watch:
            _follow(api, session, status, name, as_json)
            return
        found = list(api.items("/v1/calls", session=session, status=status, name=name))
    if as_json:
        output.print_json(found)
    else:
        output.print_table(COLUMNS, [_row(call) for call in found])


def answer(
    call_id: Annotated[str, typer.Argument(help="The call, as `toolgraft calls` shows it.", metavar="CALL_ID")],
    result: Annotated[
        str | None, typer.Argument(help="What the tool returned, as JSON; - reads stdin.", metavar="JSON")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", help="Say instead what went wrong, in words for the model.", metavar="TEXT")
    ] = None,
    session: options.AnySession = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Answer a call. With --session, only where it is a call of that session."""
    from addon.cli.api import Api
    from addon.cli.documents import parse_json, read_json

    if (result is None) == (error is None):
        raise typer.BadParameter("give either JSON or --error TEXT")
    body: dict[str, Any]
    if error is not None:
        body = {"error": error}
    elif result == "-":
        body = {"result": read_json("-")}
    else:
        hint = "; a plain text is written '\"in quotes\"'"
        body = {"result": parse_json((result or "").encode("utf-8", "surrogateescape"), "the result", hint)}
    path = f"/v1/calls/{quote(call_id, safe='')}"
    with Api(url) as api:
        if session is not None and api.get(path)["session"] != session:
            output.fail(f"there is no such call in session {session}")
        call = api.post(f"{path}/result", body)
    if as_json:
        output.print_json(call)
    else:
        print(output.plain(f"{call['call_id']} {call['name']}: {call['status']}"))


def _follow(api: "Api", session: str | None, status: str | None, name: str | None, as_json: bool) -> None:
    console = output.console()
    for call in _as_they_come(api, session):
        if status not in (None, call["status"]) or name not in (None, call["name"]):
            continue
        if as_json:
            output.print_json(call, indent=None)
        else:
            row = _row(call)
            console.print(*row[:-1], row[-1], sep="  ", soft_wrap=True)


def _as_they_come(api: "Api", session: str | None) -> Iterator[Any]:
    """The calls there are, then each that comes or changes. Never ends by itself."""
    shown: dict[str, str] = {}
    with closing(api.events(session=session)) as events:
        next(events)  # listening before listing: what comes in between is seen, and shown once
        for call in api.items("/v1/calls", session=session):
            shown[call["call_id"]] = call["status"]
            yield call
        for event in events:
            if event is None or not event.type.startswith("call."):
                continue
            call = event.data
            if shown.get(call["call_id"]) != call["status"]:
                shown[call["call_id"]] = call["status"]
                yield call


def _row(call: dict[str, Any]) -> list["str | Text"]:
    from rich.text import Text

    status = call["status"]
    return [
        output.plain(call["call_id"]),
        Text(status, style=_STYLES.get(status, "red")),
        time.strftime("%H:%M:%S", time.localtime(call["created_at"])),
        call["session"],
        output.plain(call["name"]),
        output.compact(call["args"]),
    ]
