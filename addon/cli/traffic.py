"""`toolgraft sessions`, `turns`, `requests` and `replay`: what went through the proxy."""

import asyncio
import difflib
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

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
            for turn in _new_turns(api, session):
                output.print_line(turn if as_json else _turn_row(turn))
        found = list(api.items("/v1/turns", session=session))
    if as_json:
        output.print_json(found)
    else:
        output.print_table(TURN_COLUMNS, [_turn_row(turn) for turn in found], ("TIME", "ROUNDS", "DELIVERY"))


def _new_turns(api: "Api", session: str | None) -> Iterator[Any]:
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


def _turn_row(turn: dict[str, Any]) -> list[str]:
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


if TYPE_CHECKING:
    from addon.cli.api import Api

REQUEST_COLUMNS = ("REQUEST", "TIME", "SESSION", "MODEL", "STATE", "STATUS", "ROUNDS", "TOKENS", "TOOK", "CALLS")

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
            _follow_requests(api, session, as_json=as_json)
            return
        if request_id is None:
            _print_requests(api.get("/v1/requests", session=session)["items"], as_json=as_json)
            return
        path = f"/v1/requests/{quote(request_id, safe='')}"
        if body:
            output.print_json(api.get(f"{path}/body", session=session, side=body))
        elif curl:
            print(output.plain_lines(api.get(f"{path}/curl", session=session, side=curl)["command"]))
        elif replay:
            _print_replay(api.get(f"{path}/replay", session=session), as_json=as_json)
        else:
            _print_request(api, path, session, as_json=as_json)


def _print_requests(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    output.print_table(REQUEST_COLUMNS, [_request_row(one) for one in reversed(found)], ("TIME", "ROUNDS", "SESSION"))


def _follow_requests(api: "Api", session: str | None, *, as_json: bool) -> None:
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
        output.print_line(record if as_json else _request_row(record))

    with closing(api.events(session=session, requests="1")) as events:
        for event in events:
            if event is None:
                for record in reversed(api.get("/v1/requests", session=session)["items"]):
                    show(record)
            elif event.type in ("request.began", "request.ended"):
                show(event.data)
            elif event.type == "requests.dropped":
                output.note(f"left out, as there were too many: {count(event.data['requests'], 'request')}")


def _request_row(record: dict[str, Any]) -> list[str]:
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


def _print_request(api: "Api", path: str, session: str | None, *, as_json: bool) -> None:
    from addon.control.differences import differences

    record = api.get(path, session=session)
    if as_json:
        output.print_json(record)
        return
    output.print_table(REQUEST_COLUMNS, [_request_row(record)])
    if not record["has_bodies"]:
        output.note("its bodies are not kept (graft_keep_requests)")
        return
    client, sent = (api.get(f"{path}/body", session=session, side=side) for side in ("client", "sent"))
    lines = differences(_json_lines(client), _json_lines(sent), ("client", "sent"))
    for line in lines:
        print(output.plain(line))
    if not lines:
        output.note("the model was sent what the client sent")


def _print_replay(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    if found["note"]:
        print(output.plain(found["note"]))
    for line in found["differences"]:
        print(output.plain(line))
    if not found["changed"]:
        output.note("today the same request would go to the model")


def _json_lines(document: Any) -> str:
    import json

    return json.dumps(document, indent=2, ensure_ascii=False)


def replay(
    file: Annotated[Path, typer.Argument(help="A flow file, from graft_record or mitmproxy's -w.", metavar="FILE")],
    session: options.AnySession = None,
    tools: Annotated[
        str | None, typer.Option("--tools", help="Use the tools of this file instead of the session's.", metavar="FILE")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="The store with the turns. Default: the proxy's.", metavar="URL")
    ] = None,
    option_texts: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="An option that the proxy was started with. Repeatable.", metavar="graft_NAME=VALUE"
        ),
    ] = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Rewrite recorded client requests again, offline, and show what would now go upstream.

    Nothing is sent or stored. The proxy need not run, and --url has no effect. Lines with - were sent when recorded;
    lines with + would be sent now.
    """
    from pydantic import ValidationError

    from addon.graft.grafter import GraftFailed
    from addon.graft.replay import ReplayedRequest
    from addon.settings import explain
    from store.base import StoreError

    async def collect() -> list[ReplayedRequest]:
        return await _rewritten(file, session, tools, store, option_texts or [])

    try:
        requests = asyncio.run(collect())
    except ValidationError as error:
        output.fail(explain(error))
    except (OSError, ValueError, StoreError, GraftFailed) as error:
        output.fail(str(error))
    if as_json:
        output.print_json([_as_json(request) for request in requests])
        return
    for request in requests:
        unchanged = "" if request.changed else ": as recorded"
        print(output.plain(f"{request.method} {request.url} (session {request.session}){unchanged}"))
        if request.note:
            print(output.plain(f"  {request.note}"))
        for line in _diff(request.before, request.after):
            print(output.plain(line))
    output.note(
        f"{output.count_of(len(requests), 'request')}, {sum(request.changed for request in requests)} of them changed"
    )


async def _rewritten(
    file: Path, session: str | None, tools: str | None, url: str | None, option_texts: list[str]
) -> list[Any]:
    from addon.core.tools.tool_forms import normalise
    from addon.graft.replay import replay
    from addon.hooks.recording_reader import recorded_requests
    from addon.options import parse_options
    from addon.settings import Settings
    from addon.urls import redacted
    from store.factory import open_url
    from store.models import Toolset

    settings = Settings.from_options(parse_options(option_texts))
    toolset = None
    if tools is not None:
        document = options.read_json(tools)
        normalised = normalise({"tools": document} if isinstance(document, list) else document)
        toolset = Toolset(
            declarations=normalised.declarations, builtins=normalised.builtins, tool_config=normalised.tool_config
        )
    url = url or settings.store or None
    if url is None:
        database = settings.state / "toolgraft.db"
        url = f"sqlite:///{database}" if database.exists() else "memory://"
    try:
        store = open_url(url, ttl=settings.ttl, read_only=True)
    except ValueError as error:
        raise ValueError(f"the store {redacted(url)}: {error}") from None
    await store.open()
    try:
        requests = recorded_requests(file)
        return [request async for request in replay(requests, store, settings, session=session, toolset=toolset)]
    finally:
        await store.close()


def _as_json(request: Any) -> dict[str, Any]:
    fields = ("method", "url", "session", "changed", "before", "after", "note")
    return {name: getattr(request, name) for name in fields}


def _diff(before: Any, after: Any) -> list[str]:
    old, new = (_lines(document) for document in (before, after))
    return [line for line in difflib.unified_diff(old, new, "recorded", "today", lineterm="")]


def _lines(document: Any) -> list[str]:
    text = document if isinstance(document, str) else json.dumps(document, indent=2, ensure_ascii=False)
    return text.splitlines()
