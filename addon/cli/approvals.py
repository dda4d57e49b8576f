"""`toolgraft approve` and `toolgraft deny`: decide on calls that wait for an approval."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from addon.cli import documents, options, output
from addon.cli.completion import waiting_for_approval

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
    body: dict[str, Any] = {} if args is None else {"args": documents.parse_json(args.encode(), "--args")}
    _decide(call_id, "approve", body | ({"always": True} if always else {}), url, as_json)


def deny(
    call_id: CallId,
    reason: Annotated[str, typer.Option(help="The reason, for the model.", metavar="TEXT")] = "",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Deny a call that waits for an approval. It never runs, and the model is told so."""
    _decide(call_id, "deny", {"reason": reason}, url, as_json)


def _decide(call_id: str, decision: str, body: dict[str, Any], url: str | None, as_json: bool) -> None:
    from addon.cli.api import Api

    with Api(url) as api:
        call = api.post(f"/v1/calls/{quote(call_id, safe='')}/{decision}", body)
    if as_json:
        output.print_json(call)
    else:
        print(output.plain(f"{call['call_id']} {call['name']}: {call['approval'] or call['status']}"))
