"""`toolgraft fake-gemini`: the strict local Gemini, for tests of programs that speak to Gemini."""

from typing import Annotated

import typer

from addon.cli.output import fail

Port = Annotated[int, typer.Option(help="0: any free port.", min=0, max=65535)]
Streams = Annotated[str, typer.Option(help='How streams are cut, e.g. "each,usage,pieces=5,delay=0.01".')]
AnySignature = Annotated[bool, typer.Option("--any-signature", help="Do not check thoughtSignatures.")]
AnyCall = Annotated[bool, typer.Option("--any-call", help="Accept calls of undeclared functions in the history.")]


def serve(
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
