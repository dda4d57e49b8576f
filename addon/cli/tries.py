"""`toolgraft try`: run a tool once."""

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from addon.cli import options, output
from addon.cli.calls import FINAL

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
    from addon.cli.options import parse_json, read_json

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
