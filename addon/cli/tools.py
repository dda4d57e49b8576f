"""`toolgraft tools …`: a session's toolset, changed tools of MCP servers, and their restart."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from addon.cli import options, output

_HELD = "/v1/mcp/held"

app = typer.Typer(
    help="Set, show or clear a session's tools; accept changed tools of MCP servers.", no_args_is_help=True
)


@app.command("set")
def set_tools(
    file: Annotated[str, typer.Argument(help="A JSON file, or - for stdin.", metavar="FILE")],
    session: options.Session = "default",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Replace the session's tools with those of a file.

    The file contains {"tools": […]}, optionally with "tool_config" or "tool_choice", or only the list of tools. Each
    tool is in Gemini's, OpenAI's or MCP's form, or a bare function declaration.
    """
    from addon.cli.api import Api

    document = options.read_json(file)
    with Api(url) as api:
        answer = api.put(_path(session), {"tools": document} if isinstance(document, list) else document)
    if as_json:
        output.print_json(answer)
    else:
        names = ", ".join(name for name, _ in _summaries(answer))
        print(output.plain(f"session {session}: {names or 'no tools; clients keep none either'}"))


@app.command("show")
def show_tools(session: options.Session = "default", url: options.Url = None, as_json: options.Json = False) -> None:
    """Show the session's tools, including those of the proxy's tools files and MCP servers."""
    from addon.cli.api import Api

    with Api(url) as api:
        answer = api.get(_path(session))
    if as_json:
        output.print_json(answer)
        return
    output.print_table(("TOOL", "DESCRIPTION"), _summaries(answer))
    if config := answer.get("tool_config"):
        print(f"tool config: {output.compact(config)}")


@app.command("clear")
def clear_tools(session: options.Session = "default", url: options.Url = None, as_json: options.Json = False) -> None:
    """Remove the session's own tools. Those of the proxy's tools files and MCP servers stay."""
    from addon.cli.api import Api

    with Api(url) as api:
        api.delete(_path(session))
    if as_json:
        output.print_json({"session": session, "tools": None})
    else:
        print(f"session {session}: its own tools are removed")


@app.command("held")
def show_held(url: options.Url = None, as_json: options.Json = False) -> None:
    """Show the tools of MCP servers that are held back, and how they differ from the accepted ones."""
    from addon.cli.api import Api

    with Api(url) as api:
        items = api.get(_HELD)["items"]
    if as_json:
        output.print_json(items)
        return
    for tool in items:
        _show_difference(tool)
    summary = f"{output.count_of(len(items), 'tool')} {'is' if len(items) == 1 else 'are'} held back"
    output.note(f"{summary}{'; toolgraft tools accept SERVER/TOOL accepts one' if items else ''}")


@app.command("accept")
def accept_tools(
    tools: Annotated[
        list[str] | None, typer.Argument(help="The tools' names, from `toolgraft tools held`.", metavar="SERVER/TOOL")
    ] = None,
    accept_all: Annotated[bool, typer.Option("--all", help="All tools that are held back.")] = False,
    url: options.Url = None,
) -> None:
    """Show how tools of MCP servers have changed, and accept them as they are now."""
    from addon.cli.api import Api

    if bool(tools) == accept_all:
        raise typer.BadParameter("name tools as SERVER/TOOL, or give --all")
    with Api(url) as api:
        found = {f"{one['server']}/{one['tool']}": one for one in api.get(_HELD)["items"]}
        for name in list(found) if accept_all else tools or ():
            if name not in found:
                output.fail(f"{name} is not held back; held back: {', '.join(found) or 'none'}")
            _show_difference(found[name])
            api.post("/v1/mcp/accept", {field: found[name][field] for field in ("server", "tool", "digest")})
            print(output.plain(f"{name}: accepted"))


@app.command("restart")
def restart_server(
    server: Annotated[str, typer.Argument(help="The MCP server's name, from `toolgraft status`.", metavar="SERVER")],
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Restart an MCP server. Its calls in progress fail."""
    from addon.cli.api import Api

    with Api(url) as api:
        found = api.post(f"/v1/servers/{quote(server, safe='')}/restart", {})
    if as_json:
        output.print_json(found)
        return
    state = f"up, {found['tools']} tools" if found["is_up"] else f"down: {found['error']}"
    print(output.plain(f"{server}: {state}"))


def _show_difference(tool: dict[str, Any]) -> None:
    print(output.plain(f"{tool['server']}/{tool['tool']}: {', '.join(tool['fields'])}"))
    for line in tool["diff"].splitlines():
        print(output.plain(f"  {line}"))


def _path(session: str) -> str:
    return f"/v1/sessions/{session}/tools"


def _summaries(answer: Any) -> list[tuple[str, str]]:
    """Each tool's name and the first line of its description; for built-in tools, the field's name."""
    found: list[tuple[str, str]] = []
    for tool in [*(answer["tools"] or ()), {"functionDeclarations": answer["shared"]}]:
        for declaration in tool.get("functionDeclarations", ()):
            lines = str(declaration.get("description", "")).strip().splitlines()
            found.append((output.plain(declaration["name"]), output.plain(lines[0] if lines else "")))
        found += [(output.plain(name), "built in") for name in tool if name != "functionDeclarations"]
    return found
