"""`toolgraft token`: the control API's bearer tokens, the proxy's own and additional ones."""

import enum
from datetime import datetime
from typing import Annotated

import typer

from addon.cli import options, output


class Right(enum.StrEnum):
    """The rights of a token. An enum, because Typer does not support lists of a Literal."""

    ASK = "ask"
    READ = "read"
    APPROVE = "approve"
    WORKER = "worker"
    ADMIN = "admin"


app = typer.Typer(
    help="Print the control API's token, or make, list and revoke further tokens.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context, session: options.AnySession = None, url: options.Url = None, as_json: options.Json = False
) -> None:
    """Print the control API's own token, which is created if missing.

    It has all rights in all sessions of this machine's proxy: --session and --url have no effect here. `toolgraft token
    new` makes tokens with fewer rights.
    """
    if context.invoked_subcommand is not None:
        return
    from addon.cli.api import local_token

    token = local_token()
    if as_json:
        output.print_json({"token": token})
    else:
        print(token)


@app.command("new")
def make(
    scope: Annotated[list[Right], typer.Option(help="A right: ask, read, approve, worker or admin. Repeatable.")],
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            "-s",
            callback=options.session_name,
            help="Only for this session. Default: all sessions.",
            metavar="NAME",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="A note on its purpose.", metavar="TEXT")] = "",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Make a token and print it. It is not shown again.

    ask: use the front doors. read: read everything. approve: decide on calls. worker: register workers' tools, claim
    calls and answer them. admin: everything.
    """
    from addon.cli.api import Api

    with Api(url) as api:
        made = api.post("/v1/tokens", {"scopes": list(scope), "session": session, "name": name})
    if as_json:
        output.print_json(made)
    else:
        print(made["token"])


@app.command("list")
def show_all(url: options.Url = None, as_json: options.Json = False) -> None:
    """List the tokens that were made, without their secrets."""
    from addon.cli.api import Api

    with Api(url) as api:
        found = api.get("/v1/tokens")["items"]
    if as_json:
        output.print_json({"items": found})
        return
    rows = [
        (
            token["id"],
            ", ".join(token["scopes"]),
            token["session"] or "(all)",
            datetime.fromtimestamp(token["created_at"]).strftime("%Y-%m-%d %H:%M"),
            output.plain(token["name"]),
        )
        for token in found
    ]
    output.print_table(("ID", "RIGHTS", "SESSION", "MADE", "NAME"), rows)


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's ID, from `toolgraft token list`.", metavar="ID")],
    url: options.Url = None,
) -> None:
    """Revoke a token, which is then no longer accepted."""
    from addon.cli.api import Api

    with Api(url) as api:
        api.delete(f"/v1/tokens/{token_id}")
