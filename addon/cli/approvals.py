"""`toolgraft approve` and `toolgraft deny`: decide on calls that wait for an approval."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from addon.cli import options, output
from addon.cli.options import waiting_for_approval

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
    body: dict[str, Any] = {} if args is None else {"args": options.parse_json(args.encode(), "--args")}
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
