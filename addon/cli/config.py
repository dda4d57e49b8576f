"""`toolgraft config`, `trust` and `init`: the settings that a start would use, and a toolgraft.toml."""

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


if TYPE_CHECKING:
    from addon.config_file.template import Answers

_HIGHEST_PORT = 65535


def init(
    path: Annotated[
        str | None,
        typer.Argument(help="Default: toolgraft.toml in the user's configuration folder.", metavar="FILE"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take the defaults.")] = False,
) -> None:
    """Write a commented toolgraft.toml, after five questions. An existing file is never overwritten."""
    from addon.config_file.choice import user_file
    from addon.config_file.reading import ConfigError, parse_config
    from addon.config_file.template import Answers, config_text

    file = user_file() if path is None else Path(path).absolute()
    if file.exists() or file.is_symlink():
        output.fail(f"{file} exists already: edit it, or name another file")
    if not yes and not output.is_interactive():
        output.fail("init asks questions, and there is no terminal: `toolgraft init --yes` takes the defaults")
    content = config_text(Answers() if yes else _ask(file.parent)).encode()
    try:
        parse_config(file, content)
    except ConfigError as error:
        output.fail(f"nothing is written: {error}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as opened:
            opened.write(content)
    except OSError as error:
        output.fail(f"{file}: cannot be written: {error.strerror}")
    print(output.plain(f"{file} is written"))
    print(output.plain(_usage(file, content)))


def _ask(folder: Path) -> "Answers":
    """`folder`: the file's folder, where its relative paths start."""
    from addon.config_file.template import Answers

    output.note("five questions; Enter takes the answer in brackets")
    client_tools = _choose(
        "1/5 The client's own tools: strip removes them, keep adds yours to them (coding agents need keep)",
        ("strip", "keep"),
    )
    delivery = _choose(
        "2/5 A call of your tools: auto and loop run it, hold waits for a result by hand, placeholder does not wait, "
        "passthrough hands it to the client",
        ("auto", "placeholder", "loop", "hold", "passthrough"),
    )
    tools = _ask_file("3/5 A Python file whose functions are tools, or nothing", folder)
    mcp = _ask_file("4/5 A JSON file with mcpServers, or nothing", folder)
    port = _ask_port("5/5 The port of the reverse proxy, the base URL of clients", 8081)
    return Answers(port, client_tools, delivery, tools, mcp)


def _choose(question: str, words: tuple[str, ...]) -> str:
    while (answer := _answer(question, words[0])) not in words:
        output.note(f"{answer!r} must be one of {', '.join(words)}")
    return answer


def _ask_file(question: str, folder: Path) -> tuple[str, ...]:
    while answer := _answer(question, ""):
        path = Path(answer).expanduser().absolute()
        if path.is_file():
            return (str(path.relative_to(folder) if path.is_relative_to(folder) else path),)
        output.note(f"{path}: no such file")
    return ()


def _ask_port(question: str, default: int) -> int:
    while not (answer := _answer(question, str(default))).isdecimal() or not 1 <= int(answer) <= _HIGHEST_PORT:
        output.note(f"{answer!r} must be a number from 1 to {_HIGHEST_PORT}")
    return int(answer)


def _answer(question: str, default: str) -> str:
    return str(typer.prompt(f"{question}\n   ", default=default, err=True)).strip()


def _usage(file: Path, content: bytes) -> str:
    """How the file is used. Trusts a file of the working folder, because the user has just made it."""
    from addon.config_file.choice import local_file, trust, user_file

    if file == user_file():
        return "every start of the proxy uses it: ./run_proxy.sh"
    if file == local_file():
        try:
            trust(file, content)
        except (OSError, ValueError) as error:
            output.note(f"{error}: `toolgraft trust` is still needed")
        return "a start in this folder uses it; after a change, run `toolgraft trust`"
    return f"a start uses it with ./run_proxy.sh --config {file}"
