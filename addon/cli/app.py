"""The command line's one list of commands. `main` is what the entry point `toolgraft` and `python -m addon` run.

A command's module may import only what is quick at its top; the rest is imported where it is used.
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
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason for a traceback
    app(prog_name="toolgraft")
