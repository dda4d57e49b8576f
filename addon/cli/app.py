"""The list of all commands. The entry point `toolgraft` and `python -m addon` run `main`.

To start quickly, a command's module imports slow modules only inside its functions.
"""

import io
import sys

import typer

from addon.cli import calls, clients, demo, replay, store, token, tools, worker

app = typer.Typer(
    name="toolgraft",
    help="Tool calling for any Gemini client: set tools, see captured calls, send results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(token.app, name="token")
app.add_typer(tools.app, name="tools")
app.command("calls")(calls.show)
app.command("result")(calls.answer)
app.command("worker")(worker.serve)
app.command("replay")(replay.show)
app.command("env")(clients.env)
app.command("run", context_settings={"allow_interspersed_args": False})(clients.run)
app.command("backup")(store.backup)
app.command("check")(store.check)
app.command("recover")(store.recover)
app.add_typer(store.app, name="store")
app.command("demo")(demo.show)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no traceback on terminals that are not UTF-8
    app(prog_name="toolgraft")
