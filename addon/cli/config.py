"""`toolgraft config …`: the settings that a start would use, and where each is set."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addon.cli import options, output

if TYPE_CHECKING:
    from addon.config_file.reading import ConfigFile

app = typer.Typer(
    help="Show every setting and where it is set; check a toolgraft.toml.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    str | None,
    typer.Option("--config", help="A toolgraft.toml. Default: the one in the configuration folder.", metavar="FILE"),
]


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    config: File = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="An option, as for `serve`. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    confdir: Annotated[
        str, typer.Option("--confdir", help="mitmproxy's folder, with config.yaml.", metavar="FOLDER")
    ] = "~/.mitmproxy",
    running: Annotated[bool, typer.Option("--running", help="The settings of the running proxy.")] = False,
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Show every setting that a start of the proxy would use, its value, and where it is set. Secrets are masked.

    With --running (or --url), show the settings of the proxy that runs.
    """
    if context.invoked_subcommand is not None:
        return
    if running or url is not None:
        _show_running(url, as_json)
        return
    from addon.config_file.precedence import read_yaml, setting_rows

    file = _read(config)
    from pydantic import ValidationError

    from addon.settings import explain

    try:
        rows = setting_rows(file, sets or (), read_yaml(Path(os.path.expanduser(confdir))), os.environ)
    except ValidationError as error:
        output.fail(explain(error))
    except ValueError as error:
        output.fail(str(error))
    if as_json:
        output.print_json(
            {
                "file": None if file is None else str(file.path),
                "settings": [row._asdict() for row in rows],
                "modes": None if file is None or not file.modes else list(file.modes),
                "sessions": [] if file is None else list(file.sessions),
            }
        )
        return
    _print_table(rows)
    output.note("no toolgraft.toml is used" if file is None else f"the file is {_summary(file)}")


def _show_running(url: str | None, as_json: bool) -> None:
    from addon.cli.api import Api

    with Api(url) as api:
        items = api.get("/v1/config")["items"]
    if as_json:
        output.print_json({"settings": items})
    else:
        _print_table([(row["name"], row["value"], row["source"]) for row in items])


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    cells = [tuple(map(output.plain, row)) for row in rows]
    output.print_table(("SETTING", "VALUE", "SET BY"), cells)


@app.command("check")
def check(
    path: Annotated[str | None, typer.Argument(help="Default: the one that a start would use.", metavar="FILE")] = None,
) -> None:
    """Check a toolgraft.toml. Exit status 1 and the first error, if there is one."""
    found = _read(path)
    if found is None:
        from addon.config_file.choice import user_file

        output.fail(f"there is no {user_file()}; name another file")
    if found.missing is not None:
        output.fail(found.missing)
    print(output.plain(f"{_summary(found)}: nothing is wrong"))


def trust(
    path: Annotated[
        str | None, typer.Argument(help="Default: the toolgraft.toml of this folder.", metavar="FILE")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust the file no longer.")] = False,
) -> None:
    """Trust the toolgraft.toml of this folder as it is now, so that a proxy that is started here uses it.

    It prints what the file would run. If the file changes, it is not used until it is trusted again. The files that
    it names, such as tools files, may change.
    """
    from addon.config_file.choice import distrust, local_file
    from addon.config_file.choice import trust as record
    from addon.config_file.reading import parse_config, read_file

    file = local_file() if path is None else Path(path).absolute()
    try:
        if revoke:
            print(output.plain(f"{file}: {'no longer trusted' if distrust(file) else 'was not trusted'}"))
            return
        content = read_file(file)
        found = parse_config(file, content)
        record(file, content)
    except (OSError, ValueError) as error:
        output.fail(str(error))
    print(output.plain(f"trusted as it is now: {_summary(found)}"))
    for line in [*found.programs, *_other_settings(found)]:
        print(output.plain(f"  {line}"))


def _read(named: str | None) -> "ConfigFile | None":
    from addon.config_file.choice import chosen_file
    from addon.config_file.reading import load_config

    try:
        chosen = chosen_file(named)
        if chosen.notice is not None:
            output.note(chosen.notice)
        return None if chosen.path is None else load_config(chosen.path, trusted=chosen.trusted)
    except (OSError, ValueError) as error:
        output.fail(str(error))


def _other_settings(file: "ConfigFile") -> list[str]:
    """The file's settings besides the programs that it runs, such as where chats are sent."""
    from addon.config_file.precedence import masked

    skipped = ("graft_tools", "graft_mcp")
    options = [f"{name} = {masked(name, value)}" for name, value in file.options.items() if name not in skipped]
    sessions = [
        f"session {name}" + ("" if entry.toolset is None else f" with {len(entry.toolset.declarations)} tools")
        for name, entry in file.sessions.items()
    ]
    return [*options, *(f"mode {mode}" for mode in file.modes), *sessions]


def _summary(file: "ConfigFile") -> str:
    """The file, with the numbers of its settings."""
    counts = [
        *((len(file.options), "option"), (len(file.modes), "mode")),
        *((len(file.servers), "MCP server"), (len(file.sessions), "session")),
    ]
    parts = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts if number]
    return f"{file.path} ({', '.join(parts) or 'empty'})"
