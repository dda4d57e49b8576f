"""Maintenance of the store: `toolgraft backup`, `check` and `recover`."""

from pathlib import Path
from typing import Annotated

import typer

from addon.cli import options, output

StoreUrl = Annotated[
    str | None,
    typer.Option("--store", help="The store. Default: the one in the state folder.", metavar="URL"),
]


def backup(
    file: Annotated[Path, typer.Argument(help="The new file.", metavar="FILE")],
    store: StoreUrl = None,
    as_json: options.Json = False,
) -> None:
    """Copy the store to a new file, consistently, even while the proxy runs.

    Unlike a plain copy of the database file, it includes the data in the log. To restore it, stop the proxy, replace
    the store's file with it, and delete the old -wal file beside it.
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
        print(output.plain(f"copied {path} to {file}"))


def check(store: StoreUrl = None, as_json: options.Json = False) -> None:
    """Check the store's file for damage; exit status 1 if there is any. The proxy may run."""
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
    """Recover the readable records of a damaged store. Stop the proxy first. The damaged file is kept."""
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
