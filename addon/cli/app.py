"""The list of commands.

To start quickly, a command's module imports slow modules only inside its functions.
"""

import io
import sys
from typing import Annotated, Any

import typer
import typer.core

from addon import package_version
from addon.cli import calls, config, demo, status, store, token, tools, traffic, worker
from addon.cli.doctor import doctor
from addon.cli.env import env, run
from addon.cli.serve import serve as start

app = typer.Typer(
    name="toolgraft",
    help="Tool calling for any Gemini client: set tools, see captured calls, send results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"toolgraft {package_version()}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


class _ServeCommand(typer.core.TyperCommand):
    """Its help also lists the usual options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from addon.options import USUAL  # slow

        lines = [f"{option.name}: {option.help}" for option in USUAL]
        self.epilog = "\n\n".join(["Options for `--set NAME=VALUE` (docs/options.md has all):", *lines])
        super().format_help(ctx, formatter)


@app.command(
    "serve", cls=_ServeCommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def serve(arguments: Annotated[list[str] | None, typer.Argument(metavar="…")] = None) -> None:
    """Start the proxy: mitmdump with the addon. Arguments go to mitmdump, whose own help is `mitmdump --help`.

    `--config FILE` names a toolgraft.toml; without it, the one in the user's configuration folder is used if it exists.
    """
    start(arguments or [])


app.command("init")(config.init)
app.add_typer(config.app, name="config")
app.command("trust")(config.trust)
app.add_typer(token.app, name="token")
app.add_typer(tools.app, name="tools")
app.command("status")(status.status)
app.command("doctor")(doctor)
app.command("console")(status.console)
app.command("calls")(calls.show)
app.command("approve")(calls.approve)
app.command("deny")(calls.deny)
app.command("answer")(calls.answer)
app.command("result", hidden=True)(calls.answer)  # its former name, for scripts
app.command("try")(calls.try_tool)
app.command("sessions")(traffic.sessions)
app.command("turns")(traffic.turns)
app.command("requests")(traffic.requests)
app.command("worker")(worker.serve)
app.command("replay")(traffic.replay)
app.command("env")(env)
app.command("run", context_settings={"allow_interspersed_args": False})(run)
app.command("backup")(store.backup)
app.command("check")(store.check)
app.command("recover")(store.recover)
app.command("fake-gemini")(demo.fake_gemini)
app.command("demo")(demo.demo)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no traceback on terminals that are not UTF-8
    app(prog_name="toolgraft")
