"""`toolgraft replay`: applies the current rewriting to recorded requests."""

import asyncio
import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from addon.cli import options, output


def show(
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
        return await _replay(file, session, tools, store, option_texts or [])

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


async def _replay(
    file: Path, session: str | None, tools: str | None, url: str | None, option_texts: list[str]
) -> list[Any]:
    from addon.cli.documents import read_json
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
        document = read_json(tools)
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
