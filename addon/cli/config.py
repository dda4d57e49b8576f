"""`toolgraft config …`: the settings that a start would use, and where each is set."""

import os
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
    as_json: options.Json = False,
) -> None:
    """Show every setting that a start of the proxy would use, its value, and where it is set. Secrets are masked."""
    if context.invoked_subcommand is not None:
        return
    from addon.config_file.settings_table import read_yaml, setting_rows

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
    output.print_table(
        ("SETTING", "VALUE", "SET BY"), [(row.name, output.plain(row.value), output.plain(row.source)) for row in rows]
    )
    output.note("no toolgraft.toml is used" if file is None else f"the file is {_summary(file)}")


@app.command("check")
def check(
    path: Annotated[str | None, typer.Argument(help="Default: the one that a start would use.", metavar="FILE")] = None,
) -> None:
    """Check a toolgraft.toml. Exit status 1 and the first error, with its line, if there is one."""
    found = _read(path)
    if found is None:
        from addon.config_file.places import user_file

        output.fail(f"there is no {user_file()}; name another file")
    print(output.plain(f"{_summary(found)}: nothing is wrong"))


def _read(named: str | None) -> "ConfigFile | None":
    from addon.config_file.places import chosen_file
    from addon.config_file.reading import ConfigError, load_config

    path = chosen_file(named)
    if path is None:
        return None
    try:
        return load_config(path)
    except ConfigError as error:
        output.fail(str(error))


def _summary(file: "ConfigFile") -> str:
    """The file and how much it sets."""
    counts = [(len(file.options), "option"), (len(file.modes), "mode"), (len(file.sessions), "session")]
    parts = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts if number]
    if file.servers:
        parts.append("MCP servers")
    return f"{file.path} ({', '.join(parts) or 'empty'})"
