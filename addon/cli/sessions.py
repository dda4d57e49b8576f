"""`toolgraft sessions` and `toolgraft turns`."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addon.cli import options, output

if TYPE_CHECKING:
    from addon.cli.api import Api

SESSION_COLUMNS = ("SESSION", "TOOLS", "DELIVERY", "CLIENT TOOLS", "ON PENDING", "ROUNDS", "OWN SETTINGS")
TURN_COLUMNS = ("TURN", "TIME", "MODEL", "DELIVERY", "ROUNDS", "TOKENS", "STATE", "CALLS")


def sessions(url: options.Url = None, as_json: options.Json = False) -> None:
    """List the sessions that have their own tools or settings, with the settings that apply to each."""
    from addon.cli.api import Api

    with Api(url) as api:
        found = list(api.items("/v1/sessions"))
    if as_json:
        output.print_json(found)
        return
    rows = [
        (
            session["name"],
            "none set" if session["tools"] is None else str(session["tools"]),
            session["delivery"],
            session["client_tools"],
            session["on_pending"],
            str(session["max_rounds"]),
            ", ".join(session["overrides"]),
        )
        for session in found
    ]
    output.print_table(SESSION_COLUMNS, rows)


def turns(
    watch: options.Watch = False,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            "-s",
            envvar="TOOLGRAFT_SESSION",
            callback=options.session_name,
            help="The session. Default: the proxy's own (`graft_session`); with --watch, all.",
            metavar="NAME",
        ),
    ] = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """List a session's turns with calls, newest last: what the model called, in how many rounds, for how many tokens.

    With --json, with everything that the client received, and what the model really said. With --watch, a line for each
    turn that is new or complete from now on.
    """
    from addon.cli.api import Api

    with Api(url) as api:
        if watch:
            for turn in _new(api, session):
                output.print_line(turn if as_json else _row(turn))
        found = list(api.items("/v1/turns", session=session))
    if as_json:
        output.print_json(found)
    else:
        output.print_table(TURN_COLUMNS, [_row(turn) for turn in found], ("TIME", "ROUNDS", "DELIVERY"))


def _new(api: "Api", session: str | None) -> Iterator[Any]:
    """New and completed turns. Never ends by itself."""
    states: dict[str, tuple[bool, int]] = {}
    with closing(api.events(session=session)) as events:
        for event in events:
            if event is None or not event.type.startswith("turn."):
                continue
            turn = event.data
            state = turn["delivered"], turn["rounds"]
            if states.get(turn["turn_id"]) != state:
                states[turn["turn_id"]] = state
                yield turn


def _row(turn: dict[str, Any]) -> list[str]:
    from addon.core.summaries import amount
    from addon.core.usage import output_of, prompt_of

    usage = [one for one in turn["usage"] if one]
    names = [call["name"] for step in turn["true"] for call in step["calls"]]
    was_tried = turn["surface"] == "try"  # a trial call, without a client and a model
    return [
        output.plain(turn["turn_id"]),
        time.strftime("%H:%M:%S", time.localtime(turn["created_at"])),
        output.plain(turn["model"]),
        "try" if was_tried else turn["delivery"],
        str(turn["rounds"]),
        f"{amount(sum(map(prompt_of, usage)))}→{amount(sum(map(output_of, usage)))}" if usage else "",
        "" if was_tried else "delivered" if turn["delivered"] else "unfinished",
        output.plain(", ".join(names)),
    ]
