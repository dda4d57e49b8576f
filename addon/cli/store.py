"""The care of the store: `toolgraft backup`, `check`, `recover` and `store …`."""

from pathlib import Path
from typing import Annotated

import typer

from addon.cli import options, output

app = typer.Typer(help="Look after the store.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look after the store."""


StoreUrl = Annotated[
    str | None,
    typer.Option("--store", help="The store; default: that of the state folder.", metavar="URL"),
]


def backup(
    file: Annotated[Path, typer.Argument(help="The copy to make: a new file.", metavar="FILE")],
    store: StoreUrl = None,
    as_json: options.Json = False,
) -> None:
    """Copy the store as it is at one moment to a new file, also while the proxy runs.

    It holds what a copy of the database's file alone would lack: what is in its log. To go on with it, stop the proxy,
    and put it in the place of the store's file, with none of the name and -wal beside it.
    """
    from store import care
    from store.base import StoreError

    try:
        path = _path(store)
        care.backup(path, file.absolute())
    except StoreError as error:
        output.fail(str(error))
    if as_json:
        output.print_json({"store": str(path), "backup": str(file.absolute())})
    else:
        print(output.plain(f"{path} is copied to {file}"))


def check(store: StoreUrl = None, as_json: options.Json = False) -> None:
    """Say what is wrong with the store's file; the status is 1 if anything is. The proxy may run."""
    from store import care
    from store.base import StoreError

    try:
        path = _path(store)
        wrong = care.check(path)
    except StoreError as error:
        output.fail(str(error))
    if as_json:
        output.print_json({"store": str(path), "wrong": wrong})
    else:
        for line in wrong or [f"{path}: nothing is wrong"]:
            print(output.plain(line))
    if wrong:
        raise typer.Exit(1)


def recover(store: StoreUrl = None, as_json: options.Json = False) -> None:
    """Save what can be read of a damaged store. The proxy must not run; the damaged file is kept beside the new one."""
    from store import care
    from store.base import StoreError

    try:
        path = _path(store)
        if not care.check(path):
            output.fail(f"{path}: nothing is wrong, and nothing was done")
        done = care.recover(path)
    except StoreError as error:
        output.fail(str(error))
    if as_json:
        output.print_json({"store": str(path), "saved": done.saved, "damaged": str(done.damaged)})
        return
    for table, number in done.saved.items():
        print(f"{table}: {number}")
    output.note(f"the damaged file is kept as {done.damaged}")


def _path(url: str | None) -> Path:
    from addon.settings import Settings
    from store import care

    return care.database_of(url or Settings().store_url)


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
