"""`toolgraft store …`: the store of the proxy that runs."""

import typer

from addon.cli import options, output

app = typer.Typer(help="Look after the store.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look after the store."""


@app.command("trust-clock")
def trust_clock(url: options.Url = None, as_json: options.Json = False) -> None:
    """Say that the machine's clock is right, so that old records expire again.

    Nothing expires after the clock made a step of more than an hour against the machine's uptime, or against what the
    store noted last. What is older than graft_ttl by the clock as it is goes within a minute from then on.
    """
    from addon.cli.api import Api

    with Api(url) as api:
        answer = api.post("/v1/store/trust-clock", {})
    if as_json:
        output.print_json(answer)
    else:
        print(output.plain(f"trusted from now on: {answer['doubt']}" if answer["doubt"] else "it was trusted already"))
