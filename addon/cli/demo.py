"""`toolgraft demo`: everything at once, without a key and without a network."""

import typer

from addon.cli import options


def show(session: options.Session = "default", url: options.Url = None, as_json: options.Json = False) -> None:
    """Run a chat through a proxy of its own before a local Gemini, and show both sides of it.

    Needs no key and no network, and leaves nothing behind. Exit status 1 where something that it shows does not hold.
    The proxy is the demo's own: --url changes nothing here.
    """
    from addon.demo.show import run

    if status := run(session=session, as_json=as_json):
        raise typer.Exit(status)
