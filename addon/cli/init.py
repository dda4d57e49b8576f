"""`toolgraft init`: writes a toolgraft.toml."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addon.cli import output

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
