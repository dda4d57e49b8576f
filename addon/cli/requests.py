"""`toolgraft requests`: the last requests to models, and the bodies of one of them."""

import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from addon.cli import options, output

if TYPE_CHECKING:
    from addon.cli.api import Api

COLUMNS = ("REQUEST", "TIME", "SESSION", "MODEL", "STATE", "STATUS", "ROUNDS", "TOKENS", "TOOK", "CALLS")

_MOST_STATES = 5000
"""The number of requests whose printed state --watch remembers."""


def requests(
    request_id: Annotated[
        str | None, typer.Argument(help="Show this request: what was put into its body and taken out.", metavar="ID")
    ] = None,
    watch: options.Watch = False,
    session: options.AnySession = None,
    body: Annotated[
        Literal["client", "sent"] | None,
        typer.Option("--body", help="Print the body as the client sent it, or as the proxy sent it on."),
    ] = None,
    curl: Annotated[
        Literal["client", "sent"] | None,
        typer.Option("--curl", help="Print the command line that sends it again: through the proxy, or to the model."),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Rewrite it again, and show what would go to the model now.")
    ] = False,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """List the last requests to models, newest last, or show one.

    With --watch, each request is one line when it begins, and another when it ends; with --json too, one JSON document
    per line. If the proxy ends, the command waits for the next one and goes on from there.

    The bodies of the last requests are kept in memory (`graft_keep_requests`), without secrets.
    """
    from addon.cli.api import Api

    chosen = [name for name, value in (("--body", body), ("--curl", curl), ("--replay", replay)) if value]
    if request_id is None and chosen:
        raise typer.BadParameter(f"{chosen[0]} needs the id of a request: `toolgraft requests` lists them")
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)} cannot be combined")
    if watch and request_id is not None:
        raise typer.BadParameter("--watch cannot be combined with the id of a request")
    with Api(url) as api:
        if watch:
            _follow(api, session, as_json=as_json)
            return
        if request_id is None:
            _list(api.get("/v1/requests", session=session)["items"], as_json=as_json)
            return
        path = f"/v1/requests/{quote(request_id, safe='')}"
        if body:
            output.print_json(api.get(f"{path}/body", session=session, side=body))
        elif curl:
            print(output.plain_lines(api.get(f"{path}/curl", session=session, side=curl)["command"]))
        elif replay:
            _show_replay(api.get(f"{path}/replay", session=session), as_json=as_json)
        else:
            _show(api, path, session, as_json=as_json)


def _list(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    output.print_table(COLUMNS, [_row(one) for one in reversed(found)], ("TIME", "ROUNDS", "SESSION"))


def _follow(api: "Api", session: str | None, *, as_json: bool) -> None:
    """Print the requests with --watch. Never ends by itself."""
    from addon.core.summaries import count

    states: dict[str, str] = {}

    def show(record: dict[str, Any]) -> None:
        request_id, state = record["request_id"], record["state"]
        if states.get(request_id) == state:
            return
        states[request_id] = state
        if len(states) > _MOST_STATES:
            del states[next(iter(states))]
        output.print_line(record if as_json else _row(record))

    with closing(api.events(session=session, requests="1")) as events:
        for event in events:
            if event is None:
                for record in reversed(api.get("/v1/requests", session=session)["items"]):
                    show(record)
            elif event.type in ("request.began", "request.ended"):
                show(event.data)
            elif event.type == "requests.dropped":
                output.note(f"left out, as there were too many: {count(event.data['requests'], 'request')}")


def _row(record: dict[str, Any]) -> list[str]:
    from addon.core.summaries import amount, duration

    used = record["prompt_tokens"] or record["output_tokens"]
    return [
        record["request_id"],
        time.strftime("%H:%M:%S", time.localtime(record["began_at"])),
        record["session"],
        output.plain(record["model"]),
        record["state"],
        str(record["status"] or ""),
        str(record["rounds"]),
        f"{amount(record['prompt_tokens'])}→{amount(record['output_tokens'])}" if used else "",
        duration(record["seconds"]),
        output.plain(", ".join(call["name"] for call in record["calls"])),
    ]


def _show(api: "Api", path: str, session: str | None, *, as_json: bool) -> None:
    from addon.control.differences import differences

    record = api.get(path, session=session)
    if as_json:
        output.print_json(record)
        return
    output.print_table(COLUMNS, [_row(record)])
    if not record["has_bodies"]:
        output.note("its bodies are not kept (graft_keep_requests)")
        return
    client, sent = (api.get(f"{path}/body", session=session, side=side) for side in ("client", "sent"))
    lines = differences(_lines(client), _lines(sent), ("client", "sent"))
    for line in lines:
        print(output.plain(line))
    if not lines:
        output.note("the model was sent what the client sent")


def _show_replay(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    if found["note"]:
        print(output.plain(found["note"]))
    for line in found["differences"]:
        print(output.plain(line))
    if not found["changed"]:
        output.note("today the same request would go to the model")


def _lines(document: Any) -> str:
    import json

    return json.dumps(document, indent=2, ensure_ascii=False)
