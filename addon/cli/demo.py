"""`toolgraft demo`: shows a proxied chat without a key and without a network."""

from typing import Annotated, Literal

import typer

from addon.cli import options

Part = Annotated[
    Literal["chat", "loop"],
    typer.Argument(help="`chat`: placeholders and results by hand. `loop`: the proxy runs the tools.", metavar="PART"),
]


def show(
    part: Part = "chat",
    session: options.Session = "default",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Run a chat through a temporary proxy and a local Gemini, and show both sides; `loop`: with tools that run.

    Needs no key and no network, and leaves nothing behind. Exit status 1 if a check of the demo fails. --url has no
    effect here.
    """
    from addon.demo import run

    if status := run(part, session=session, as_json=as_json):
        raise typer.Exit(status)
