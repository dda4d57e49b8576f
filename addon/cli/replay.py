"""`toolgraft replay`: what today's rewriting would make of recorded requests."""

import asyncio
import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from addon.cli import options, output


def show(
    file: Annotated[Path, typer.Argument(help="A flow file: of graft_record, or of mitmproxy's -w.", metavar="FILE")],
    session: options.AnySession = None,
    tools: Annotated[
        str | None, typer.Option("--tools", help="A tools file to use instead of the session's tools.", metavar="FILE")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="The store to look turns up in; default: the proxy's.", metavar="URL")
    ] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="An option of the proxy, as it was started with; repeatable.", metavar="graft_NAME=VALUE"
        ),
    ] = None,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Push recorded client requests through today's rewriting, offline, and show what would go upstream instead.

    Nothing is sent and nothing is stored; the proxy need not run, and --url is not used. A line that begins with -
    was sent when it was recorded, one with + would be sent now.
    """
    from pydantic import ValidationError

    from addon.hooks.replay import Replayed
    from addon.settings import explain
    from store.base import StoreError

    async def collect() -> list[Replayed]:
        return await _replayed(file, session, tools, store, chosen or [])

    try:
        found = asyncio.run(collect())
    except ValidationError as error:
        output.fail(explain(error))
    except (OSError, ValueError, StoreError) as error:
        output.fail(str(error))
    if as_json:
        output.print_json([_as_json(one) for one in found])
        return
    for one in found:
        same = "" if one.changed else ": as recorded"
        print(output.plain(f"{one.method} {one.url} (session {one.session}){same}"))
        if one.note:
            print(output.plain(f"  {one.note}"))
        for line in _diff(one.before, one.after):
            print(output.plain(line))
    output.note(f"{len(found)} requests, {sum(one.changed for one in found)} of them changed")


async def _replayed(
    file: Path, session: str | None, tools: str | None, url: str | None, chosen: list[str]
) -> list[Any]:
    from addon.cli.documents import read_json
    from addon.core.toolset import normalise
    from addon.hooks.replay import replay
    from addon.options import parse_options
    from addon.settings import Settings
    from addon.urls import redacted
    from store.factory import open_url
    from store.models import Toolset

    settings = Settings.from_options(parse_options(chosen))
    toolset = None
    if tools is not None:
        document = read_json(tools)
        made = normalise({"tools": document} if isinstance(document, list) else document)
        toolset = Toolset(declarations=made.declarations, builtins=made.builtins, tool_config=made.tool_config)
    url = url or settings.store or None
    if url is None:
        kept = settings.state / "toolgraft.db"
        url = f"sqlite:///{kept}" if kept.exists() else "memory://"
    try:
        store = open_url(url, ttl=settings.ttl, read_only=True)
    except ValueError as error:
        raise ValueError(f"the store {redacted(url)}: {error}") from None
    await store.open()
    try:
        return [one async for one in replay(file, store, settings, session=session, toolset=toolset)]
    finally:
        await store.close()


def _as_json(one: Any) -> dict[str, Any]:
    fields = ("method", "url", "session", "changed", "before", "after", "note")
    return {name: getattr(one, name) for name in fields}


def _diff(before: Any, after: Any) -> list[str]:
    old, new = (_lines(document) for document in (before, after))
    return [line for line in difflib.unified_diff(old, new, "recorded", "today", lineterm="")]


def _lines(document: Any) -> list[str]:
    text = document if isinstance(document, str) else json.dumps(document, indent=2, ensure_ascii=False)
    return text.splitlines()
