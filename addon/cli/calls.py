"""`toolgraft calls` and `toolgraft result`: list captured calls, and answer them."""

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
_STYLES = {"pending": "yellow", "waiting": "yellow", "running": "cyan", "done": "green"}


def show(
    status: Annotated[Status | None, typer.Option(help="Only calls with this status.")] = None,
    name: Annotated[str | None, typer.Option(help="Only calls of this tool.", metavar="TOOL")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep running, and show calls as they arrive and change.")
    ] = False,
    session: options.AnySession = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """List captured calls, newest last.

    With --watch, each new or changed call is one line; with --json too, one JSON document per line.
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
    call_id: Annotated[str, typer.Argument(help="The call's ID, from `toolgraft calls`.", metavar="CALL_ID")],
    result: Annotated[
        str | None, typer.Argument(help="The tool's result, as JSON; - reads stdin.", metavar="JSON")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", help="Answer with this error for the model instead.", metavar="TEXT")
    ] = None,
    session: options.AnySession = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Answer a call. With --session, only if the call belongs to that session."""
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
        hint = "; write plain text as '\"in quotes\"'"
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
    for call in _current_and_new(api, session):
        if status not in (None, call["status"]) or name not in (None, call["name"]):
            continue
        if as_json:
            output.print_json(call, indent=None)
        else:
            row = _row(call)
            console.print(*row[:-1], row[-1], sep="  ", soft_wrap=True)


def _current_and_new(api: "Api", session: str | None) -> Iterator[Any]:
    """The current calls, then each new or changed one. Never ends by itself."""
    statuses: dict[str, str] = {}
    with closing(api.events(session=session)) as events:
        next(events)  # listen before listing, so that no call is missed or shown twice
        for call in api.items("/v1/calls", session=session):
            statuses[call["call_id"]] = call["status"]
            yield call
        for event in events:
            if event is None or not event.type.startswith("call."):
                continue
            call = event.data
            if statuses.get(call["call_id"]) != call["status"]:
                statuses[call["call_id"]] = call["status"]
                yield call


def _row(call: dict[str, Any]) -> list["str | Text"]:
    from rich.text import Text

    status = call["status"]
    if call["approval"] == "waiting":
        status = "waiting"  # for an approval
    return [
        output.plain(call["call_id"]),
        Text(status, style=_STYLES.get(status, "red")),
        time.strftime("%H:%M:%S", time.localtime(call["created_at"])),
        call["session"],
        output.plain(call["name"]),
        output.compact(call["args"]),
    ]
