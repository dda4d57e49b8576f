"""`toolgraft calls`, `answer`, `approve`, `deny` and `try`."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from addon.cli import options, output
from addon.cli.options import parse_json, read_json, waiting_for_approval, waiting_for_result

if TYPE_CHECKING:
    from rich.text import Text

    from addon.cli.api import Api
    from addon.tools.outputs import Media

Status = Literal["pending", "running", "done", "failed", "denied", "expired"]
COLUMNS = ("CALL", "STATUS", "APPROVAL", "TIME", "DURATION", "SESSION", "NAME", "ARGUMENTS", "ERROR")
_STYLES = {"pending": "yellow", "waiting": "yellow", "running": "cyan", "done": "green", "approved": "green"}
FINAL = ("done", "failed", "denied", "expired")


def show(
    status: Annotated[Status | None, typer.Option(help="Only calls with this status.")] = None,
    name: Annotated[str | None, typer.Option(help="Only calls of this tool.", metavar="TOOL")] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Only calls with this text in name, id, arguments, result or error.", metavar="TEXT"),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only calls from this time on, such as 2026-11-24T09:30.", metavar="TIME")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only calls before this time.", metavar="TIME")] = None,
    newest: Annotated[
        int | None, typer.Option(min=1, help="Only the newest calls, this many at most, newest first.", metavar="COUNT")
    ] = None,
    watch: options.Watch = False,
    session: options.AnySession = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """List captured calls, newest last. DURATION is the time from the call to its answer.

    With --watch, each new or changed call is one line; with --json too, one JSON document per line. If the proxy ends,
    the command waits for the next one and goes on from there.
    """
    from addon.cli.api import Api

    if watch and (text or since or until or newest):
        raise typer.BadParameter("--watch cannot be combined with --text, --since, --until and --newest")
    query = {"session": session, "status": status, "name": name, "text": text}
    query |= {"since": _moment("--since", since), "until": _moment("--until", until)}
    with Api(url) as api:
        if watch:
            _follow(api, session, status, name, as_json)
            return
        if newest:
            query["order"] = "newest"
        found = list(itertools.islice(api.items("/v1/calls", **query), newest))
    if as_json:
        output.print_json(found)
    else:
        output.print_table(COLUMNS, [_row(call) for call in found], ("TIME", "DURATION", "SESSION", "APPROVAL"))


def _moment(option: str, text: str | None) -> str | None:
    """A time for the API. Without a zone, it is local time."""
    import datetime

    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError:
        raise typer.BadParameter(f"{text!r} must be a time such as 2026-11-24T09:30", param_hint=option) from None


def answer(
    call_id: Annotated[
        str,
        typer.Argument(
            help="The call's ID, from `toolgraft calls`.", metavar="CALL_ID", autocompletion=waiting_for_result
        ),
    ],
    result: Annotated[
        str | None, typer.Argument(help="The tool's result, as JSON; - reads stdin.", metavar="JSON")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", help="Answer with this error for the model instead.", metavar="TEXT")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", help="An image, sound or file of the result. Repeatable.", metavar="PATH"),
    ] = None,
    session: options.AnySession = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Answer a call. Without JSON, --file and --error, the command asks for JSON or an error if it runs in a terminal.

    With --session, only if the call belongs to that session.
    """
    from addon.cli.api import Api

    if result is not None and error is not None:
        raise typer.BadParameter("give either JSON or --error TEXT, not both")
    if files and error is not None:
        raise typer.BadParameter("--file belongs to a result, not to --error")
    asks = result is None and error is None and not files
    if asks and not output.is_interactive():
        raise typer.BadParameter("give either JSON or --error TEXT: there is no terminal to ask for them")
    body = {} if asks else _body(result, error, files or [])
    path = f"/v1/calls/{quote(call_id, safe='')}"
    with Api(url) as api:
        if asks or session is not None:
            before = api.get(path)
            if session is not None and before["session"] != session:
                output.fail(f"there is no such call in session {session}")
            if asks:
                body = _ask(before)
        call = api.post(f"{path}/result", body)
    if as_json:
        output.print_json(call)
    else:
        print(output.plain(f"{call['call_id']} {call['name']}: {call['status']}"))


_HINT = "; write plain text as '\"in quotes\"'"


def _body(result: str | None, error: str | None, files: Sequence[Path]) -> dict[str, Any]:
    from addon.core.history.outcomes import reference

    if error is not None:
        return {"error": error}
    media = [_media(path) for path in files]
    if result is None:
        references = [reference(number, one.mime_type) for number, one in enumerate(media, 1)]
        value = references if len(references) > 1 else references[0]
    elif result == "-":
        value = read_json("-")
    else:
        value = parse_json(result.encode("utf-8", "surrogateescape"), "the result", _HINT)
    return {"result": value, **({"parts": [one.part for one in media]} if media else {})}


def _media(path: Path) -> "Media":
    """A file, with the type according to its bytes or name."""
    import mimetypes

    from addon.tools.outputs import Media, type_by_content

    try:
        data = path.read_bytes()
    except OSError as error:
        output.fail(f"{path} cannot be read: {error.strerror}")
    if not data:
        output.fail(f"{path} is empty")
    kind = type_by_content(data[:16]) or mimetypes.guess_type(path.name)[0]
    if kind is None:
        output.fail(f"{path} has no known type: its name must end in one, such as .png")
    return Media(data, kind)


def _ask(call: dict[str, Any]) -> dict[str, Any]:
    """Ask for the result, until it is JSON, or for an error."""
    if call["status"] in FINAL:
        output.fail(f"the call is already {call['status']}")
    typer.echo(f"{output.plain(call['name'])} {output.compact(call['args'])}", err=True)
    while True:
        text = typer.prompt("Result, as JSON (empty: an error)", default="", show_default=False, err=True)
        if not text.strip():
            return {"error": typer.prompt("Error, for the model", err=True)}
        try:
            return {
                "result": parse_json(text.encode("utf-8", "surrogateescape"), "the result", '; text is "in quotes"')
            }
        except typer.Exit:
            continue  # the message was printed


def _follow(api: "Api", session: str | None, status: str | None, name: str | None, as_json: bool) -> None:
    for call in _current_and_new(api, session):
        if status in (None, call["status"]) and name in (None, call["name"]):
            output.print_line(call if as_json else _row(call))


def _current_and_new(api: "Api", session: str | None) -> Iterator[Any]:
    """The current calls, then each new or changed one. Never ends by itself."""
    states: dict[str, tuple[str, str | None]] = {}
    listed_at: dict[str, float] = {}
    with closing(api.events(session=session)) as events:
        for event in events:
            if event is None:  # no later event is missed, and the list has the calls before
                calls = list(api.items("/v1/calls", session=session))
                listed_at = {call["call_id"]: call["updated_at"] for call in calls}
            elif event.type.startswith("call."):
                calls = [event.data]
                if event.data["updated_at"] < listed_at.get(event.data["call_id"], 0.0):
                    continue  # the list has a newer state
                listed_at.pop(event.data["call_id"], None)
            else:
                continue
            for call in calls:
                state = call["status"], call["approval"]
                if states.get(call["call_id"]) != state:
                    states[call["call_id"]] = state
                    yield call


def _row(call: dict[str, Any]) -> list["str | Text"]:
    from rich.text import Text

    from addon.core.summaries import duration

    status, approval = call["status"], call["approval"] or ""
    took = duration(max(0.0, call["updated_at"] - call["created_at"])) if status in FINAL else ""
    return [
        Text(output.plain(call["call_id"])),
        Text(status, style=_STYLES.get(status, "red")),
        Text(approval, style=_STYLES.get(approval, "red")),
        time.strftime("%H:%M:%S", time.localtime(call["created_at"])),
        took,
        call["session"],
        output.plain(call["name"]),
        output.compact(call["args"]),
        output.plain(call["error"] or ""),
    ]


CallId = Annotated[
    str,
    typer.Argument(
        help="The call's ID, from `toolgraft calls --status pending`.",
        metavar="CALL_ID",
        autocompletion=waiting_for_approval,
    ),
]


def approve(
    call_id: CallId,
    args: Annotated[
        str | None,
        typer.Option(help="Arguments that it runs with instead of the model's: a JSON object.", metavar="JSON"),
    ] = None,
    always: Annotated[
        bool,
        typer.Option("--always", help="Later calls of the tool in this session need no approval, until it changes."),
    ] = False,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Approve a call that waits for it. It runs now."""
    body: dict[str, Any] = {} if args is None else {"args": parse_json(args.encode(), "--args")}
    _decide(call_id, "approve", body | ({"always": True} if always else {}), url, as_json)


def deny(
    call_id: Annotated[
        str,
        typer.Argument(
            help="The call's ID, from `toolgraft calls --status pending`; not with --all.",
            metavar="[CALL_ID]",
            autocompletion=waiting_for_approval,
        ),
    ] = "",
    reason: Annotated[str, typer.Option(help="The reason, for the model.", metavar="TEXT")] = "",
    all_calls: Annotated[bool, typer.Option("--all", help="Deny all calls that wait for an approval.")] = False,
    session: Annotated[str, typer.Option(help="With --all: only calls of this session.", metavar="NAME")] = "",
    name: Annotated[str, typer.Option(help="With --all: only calls of this tool.", metavar="TOOL")] = "",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Deny a call that waits for an approval, or all of them. It never runs, and the model is told so."""
    if all_calls == bool(call_id):
        raise typer.BadParameter("give the ID of one call, or --all", param_hint="CALL_ID")
    if not all_calls:
        if session or name:
            raise typer.BadParameter("--session and --name go with --all", param_hint="CALL_ID")
        _decide(call_id, "deny", {"reason": reason}, url, as_json)
        return
    chosen = {key: value for key, value in (("session", session), ("name", name)) if value}
    _deny_all({"reason": reason, **chosen}, url, as_json)


def _deny_all(body: dict[str, Any], url: str | None, as_json: bool) -> None:
    from addon.cli.api import Api

    denied: list[str] = []
    with Api(url) as api:
        more = True
        while more:
            answer = api.post("/v1/approvals/deny", body)
            denied += answer["denied"]
            more = answer["more"] and bool(answer["denied"])
    if as_json:
        output.print_json({"denied": denied})
    else:
        print(f"{len(denied)} {'call' if len(denied) == 1 else 'calls'} denied")


def _decide(call_id: str, decision: str, body: dict[str, Any], url: str | None, as_json: bool) -> None:
    from addon.cli.api import Api

    with Api(url) as api:
        call = api.post(f"/v1/calls/{quote(call_id, safe='')}/{decision}", body)
    if as_json:
        output.print_json(call)
    else:
        print(output.plain(f"{call['call_id']} {call['name']}: {call['approval'] or call['status']}"))


_FIRST = 2
"""Seconds after which the command prints what the call waits for."""
_PAUSE = 0.5


def try_tool(
    name: Annotated[str, typer.Argument(help="The tool's name.", metavar="NAME")],
    args: Annotated[str, typer.Argument(help="The arguments, as a JSON object; - reads stdin.", metavar="JSON")] = "{}",
    session: options.Session = "default",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Run a tool once, with its executor and its rules, and print the result. The call is stored, but belongs to no
    conversation."""
    from addon.cli.api import Api

    given = read_json("-") if args == "-" else parse_json(args.encode("utf-8", "surrogateescape"), "the arguments")
    path = f"/v1/sessions/{session}/tools/{quote(name, safe='')}/try?wait={_FIRST}"
    with Api(url) as api:
        call = api.post(path, {"args": given})
        if call["status"] not in FINAL:
            output.note(f"{name} {_what_it_waits_for(call)}; Ctrl-C ends the wait, and not the call")
        while call["status"] not in FINAL:
            time.sleep(_PAUSE)
            call = api.get(f"/v1/calls/{quote(call['call_id'], safe='')}")
    if as_json:
        output.print_json(call)
    elif call["status"] == "done":
        output.print_json(call["result"])
    if call["status"] != "done":
        output.fail(f"{name}: {call['status']}: {call['error']}")


def _what_it_waits_for(call: dict[str, Any]) -> str:
    if call["approval"] == "waiting":
        return f"waits for an approval: toolgraft approve {call['call_id']}"
    if call["status"] == "pending" and call["owner"] == "workers":
        return "waits for a worker"
    return "runs"
