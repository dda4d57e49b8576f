"""`toolgraft demo`: everything at once, without a key and without a network."""

from typing import Annotated, Literal

import typer

from addon.cli import options

Part = Annotated[
    Literal["chat", "loop"], typer.Argument(help="What is shown: a chat, or tools that run.", metavar="PART")
]


def show(
    part: Part = "chat",
    session: options.Session = "default",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Run a chat through a proxy of its own before a local Gemini, and show both sides of it; `loop`: tools that run.

    Needs no key and no network, and leaves nothing behind. Exit status 1 where something that it shows does not hold.
    The proxy is the demo's own: --url changes nothing here.
    """
    from addon.demo.show import run

    if status := run(part, session=session, as_json=as_json):
        raise typer.Exit(status)
