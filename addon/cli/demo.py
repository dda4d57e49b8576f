"""`toolgraft demo` and `toolgraft fake-gemini`, which need no key and no network."""

from typing import Annotated, Literal

import typer

from addon.cli import options
from addon.cli.output import fail

Part = Annotated[
    Literal["chat", "loop"],
    typer.Argument(help="`chat`: placeholders and results by hand. `loop`: the proxy runs the tools.", metavar="PART"),
]


def demo(
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


Port = Annotated[int, typer.Option(help="0: any free port.", min=0, max=65535)]
Streams = Annotated[str, typer.Option(help='How streams are cut, e.g. "each,usage,pieces=5,delay=0.01".')]
AnySignature = Annotated[bool, typer.Option("--any-signature", help="Do not check thoughtSignatures.")]
AnyCall = Annotated[bool, typer.Option("--any-call", help="Accept calls of undeclared functions in the history.")]


def fake_gemini(
    port: Port = 9912, shape: Streams = "", any_signature: AnySignature = False, any_call: AnyCall = False
) -> None:
    """Run a local Gemini that refuses what Gemini refuses; its answers follow from the request alone."""
    from addon.fake_gemini.server import run

    try:
        run(port, shape, check_signatures=not any_signature, check_declared=not any_call)
    except ValueError as error:
        fail(f"--shape: {error}")
    except OSError as error:
        fail(f"cannot listen on 127.0.0.1:{port}: {error.strerror}")
