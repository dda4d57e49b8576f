"""`toolgraft token`: the control API's bearer tokens, the proxy's own and those that are made beside it."""

import enum
from datetime import datetime
from typing import Annotated

import typer

from addon.cli import options, output


class Right(enum.StrEnum):
    """What a token may do. Typer takes no list of a Literal."""

    ASK = "ask"
    READ = "read"
    APPROVE = "approve"
    WORKER = "worker"
    ADMIN = "admin"


app = typer.Typer(
    help="Print the control API's token, or make, list and revoke others.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context, session: options.AnySession = None, url: options.Url = None, as_json: options.Json = False
) -> None:
    """Print the control API's own token; one is made where there is none yet.

    It may do everything. All sessions share it, and it is this machine's: --session and --url change nothing here.
    Tokens that may do less are made by `toolgraft token new`.
    """
    if context.invoked_subcommand is not None:
        return
    from addon.cli.api import own_token

    token = own_token()
    if as_json:
        output.print_json({"token": token})
    else:
        print(token)


@app.command("new")
def make(
    scope: Annotated[list[Right], typer.Option(help="What it may do: ask, read, approve, worker, admin. Repeatable.")],
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            "-s",
            callback=options.session_name,
            help="Only this session; else all of them.",
            metavar="NAME",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What it is for, in your words.", metavar="TEXT")] = "",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Make a token and print it: it is not shown again.

    ask: the front doors alone. read: everything that is shown. approve: decide on calls. worker: register workers'
    tools, claim calls, answer them. admin: everything.
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
    """List the tokens that were made, without what their owners send."""
    from addon.cli.api import Api

    with Api(url) as api:
        found = api.get("/v1/tokens")["items"]
    if as_json:
        output.print_json({"items": found})
        return
    rows = [
        (
            one["id"],
            ", ".join(one["scopes"]),
            one["session"] or "(all)",
            datetime.fromtimestamp(one["created_at"]).strftime("%Y-%m-%d %H:%M"),
            output.plain(one["name"]),
        )
        for one in found
    ]
    output.print_table(("ID", "MAY", "SESSION", "MADE", "NAME"), rows)


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `token list` shows it.", metavar="ID")],
    url: options.Url = None,
) -> None:
    """Revoke a token: nobody gets in with it any more."""
    from addon.cli.api import Api

    with Api(url) as api:
        api.delete(f"/v1/tokens/{token_id}")
