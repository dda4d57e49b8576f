"""`toolgraft status` and `toolgraft console`: the state of the running proxy, and a link to its web pages."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addon.cli import options, output
from addon.core.summaries import shortened

if TYPE_CHECKING:
    from addon.cli.api import Api

_MOST_WAITING = 5
"""The number of calls that are listed; the rest is counted."""
_MOST_FAILED = 3
_RECENT = 3600.0
"""Seconds for which a failed call is recent."""
_MOST_READ = 5000
"""The most failed calls that are read: the list begins with the oldest."""
_MOST_TOOLS = 20


def status(url: options.Url = None, as_json: options.Json = False) -> None:
    """Show whether the proxy and its store can be used, MCP servers, tools and sessions, waiting
    calls, and calls that failed recently."""
    from addon.cli.api import Api

    with Api(url) as api:
        found = _status(api)
    if as_json:
        output.print_json(found)
        return
    for line in _lines(found):
        print(output.plain(line))


def _status(api: "Api") -> dict[str, Any]:
    version, problem = api.get("/healthz/live")["version"], api.problem("/healthz")
    return {
        "url": api.url,
        "version": version,
        "problem": problem,
        "running": len(api.get("/v1/requests", state="running")["items"]),
        "servers": api.get("/v1/servers")["items"],
        # If the store does not answer, reading sessions would end the command before it reports that.
        "sessions": [] if problem else list(api.items("/v1/sessions")),
        "tools": [] if problem else _tools(api),
        "held_tools": [one["name"] for one in api.get("/v1/mcp/held")["items"]],
        "waiting": [] if problem else list(api.items("/v1/calls", status="pending")),
        **({"failed": [], "all_failed_read": True} if problem else _failed(api)),
    }


def _tools(api: "Api") -> list[str]:
    """The names of the proxy's own tools, which every session has."""
    found = api.find("/v1/sessions/default/tools")
    return [] if found is None else [tool["name"] for tool in found["shared"]]


def _failed(api: "Api") -> dict[str, Any]:
    """The calls that failed recently, oldest first, and whether all failed calls were read."""
    found = list(islice(api.items("/v1/calls", status="failed"), _MOST_READ))
    since = time.time() - _RECENT
    recent = [call for call in found if call["updated_at"] >= since]
    return {"failed": recent, "all_failed_read": len(found) < _MOST_READ}


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"toolgraft {found['version']} at {found['url']}: " + (found["problem"] or "ready")
    if found["running"]:
        yield f"  {output.count_of(found['running'], 'request')} in progress"
    for server in found["servers"]:
        state = f"up, {output.count_of(server['tools'], 'tool')}" if server["is_up"] else f"down: {server['error']}"
        last = server["last_error"] if server["is_up"] else None
        before = f"; last error at {_clock(server['last_error_at'])}: {shortened(last, 100)}" if last else ""
        yield f"  MCP server {server['name']}: {state}{before}"
    if tools := found["tools"]:
        more = f" and {len(tools) - _MOST_TOOLS} more" if len(tools) > _MOST_TOOLS else ""
        yield f"  tools of every session: {', '.join(tools[:_MOST_TOOLS])}{more}"
    if found["held_tools"]:
        names = ", ".join(found["held_tools"])
        yield f"  changed MCP tools, held back until `toolgraft tools accept`: {names}"
    for session in found["sessions"]:
        own = "no toolset" if session["tools"] is None else output.count_of(session["tools"], "tool")
        changed = ", ".join(f"{name}={session[name]}" for name in session["overrides"])
        yield f"  session {session['name']}: {own}" + (f"; {changed}" if changed else "")
    yield from _waiting_lines(found["waiting"])
    yield from _failed_lines(found["failed"], found["all_failed_read"])


def _waiting_lines(waiting: list[Any]) -> Iterator[str]:
    for call in waiting[:_MOST_WAITING]:
        if call["approval"] == "waiting":
            yield f"  {call['name']} waits for an approval: toolgraft approve {call['call_id']}"
        elif call["owner"] == "hand":
            yield f"  {call['name']} waits for a result: toolgraft answer {call['call_id']}"
        else:
            yield f"  {call['name']} waits for {'a worker' if call['owner'] == 'workers' else 'the proxy'}"
    if len(waiting) > _MOST_WAITING:
        yield f"  {len(waiting) - _MOST_WAITING} more calls wait: toolgraft calls --status pending"


def _failed_lines(failed: list[Any], are_all_read: bool) -> Iterator[str]:
    if not are_all_read:
        yield f"  {_MOST_READ} calls or more have failed, not all of them were read: toolgraft calls --status failed"
    for call in failed[-_MOST_FAILED:]:
        yield f"  {call['name']} failed at {_clock(call['updated_at'])}: {shortened(call['error'] or '', 100)}"
    if len(failed) > _MOST_FAILED:
        yield f"  {len(failed)} calls failed within the last hour: toolgraft calls --status failed"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def console(
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Print a link to the console, the control API's web pages. It signs in once, within 15 minutes."""
    from addon.cli.api import Api

    with Api(url) as api:
        path = "/console" if api.token is None else api.post("/console/links", {})["path"]
        link = api.url + path
    if opens:
        import webbrowser

        opens = webbrowser.open(link)
    if as_json:
        output.print_json({"url": link})
    elif not opens:
        print(link)
