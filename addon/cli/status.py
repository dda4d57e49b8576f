"""`toolgraft status`: what the running proxy has, and what waits."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from addon.cli import options, output

if TYPE_CHECKING:
    from addon.cli.api import Api

_MOST_WAITING = 5
"""Calls that are listed; the rest is counted."""


def status(url: options.Url = None, as_json: options.Json = False) -> None:
    """Show whether the proxy can be used, its processes, MCP servers and sessions, and the calls that wait."""
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
        "processes": api.get("/v1/processes")["items"],
        # A store that does not answer would end the command before it has said so.
        "sessions": [] if problem else list(api.items("/v1/sessions")),
        "held_tools": [one["name"] for one in api.get("/v1/mcp/held")["items"]],
        "waiting": [] if problem else list(api.items("/v1/calls", status="pending")),
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"toolgraft {found['version']} at {found['url']}: " + (found["problem"] or "ready")
    for process in found["processes"]:
        outage = f", store: {process['outage']}" if process["outage"] else ""
        yield (
            f"  process {process['slot']} (pid {process['pid']}): requests {process['requests']}, "
            f"loops {process['loops']}, Live connections {process['live']}{outage}"
        )
        for server in process["mcp"]:
            state = f"up, {_count(server['tools'], 'tool')}" if server["is_up"] else f"down: {server['error']}"
            yield f"    MCP server {server['name']}: {state}"
    if found["held_tools"]:
        names = ", ".join(found["held_tools"])
        yield f"  changed MCP tools, held back until `toolgraft tools accept`: {names}"
    for session in found["sessions"]:
        own = "no toolset of its own" if session["tools"] is None else _count(session["tools"], "tool")
        changed = ", ".join(f"{name}={session[name]}" for name in session["overrides"])
        yield f"  session {session['name']}: {own}" + (f"; {changed}" if changed else "")
    waiting = found["waiting"]
    for call in waiting[:_MOST_WAITING]:
        if call["approval"] == "waiting":
            yield f"  {call['name']} waits for an approval: toolgraft approve {call['call_id']}"
        elif call["owner"] == "hand":
            yield f"  {call['name']} waits for a result: toolgraft result {call['call_id']} JSON"
        else:
            yield f"  {call['name']} waits for {'a worker' if call['owner'] == 'workers' else 'the proxy'}"
    if len(waiting) > _MOST_WAITING:
        yield f"  {len(waiting) - _MOST_WAITING} more calls wait: toolgraft calls --status pending"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
