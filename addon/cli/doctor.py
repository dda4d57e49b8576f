"""`toolgraft doctor`: finds problems of the proxy and its clients, each with its fix. The checks change nothing."""

import os
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import typer

from addon.cli import options, output

State = Literal["ok", "note", "unknown", "wrong"]
"""`note`: possibly intended. `unknown`: the check could not be made."""


class Finding(NamedTuple):
    check: str
    state: State
    message: str
    fix: str = ""


_LABELS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "unknown": ("?", "yellow"), "wrong": ("wrong", "red")}

Upstream = Annotated[
    str,
    typer.Option("--upstream", help="The model's base URL, to which the check connects.", metavar="URL"),
]


def doctor(
    upstream: Upstream = "https://generativelanguage.googleapis.com",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Check Python, ports, the CA, environment variables, key, network, store and tools, and say how to fix what is
    wrong.

    Run it in the shell that starts the client. Exit status 1 if something is wrong. It changes nothing, and shows no
    secrets.
    """
    found = list(_findings(upstream, url))
    is_well = all(finding.state != "wrong" for finding in found)
    if as_json:
        output.print_json({"ok": is_well, "findings": [finding._asdict() for finding in found]})
    else:
        _print(found)
    if not is_well:
        raise typer.Exit(1)


def _findings(upstream: str, url: str | None) -> Iterator[Finding]:
    from addon.cli import doctor_machine, doctor_proxy
    from addon.cli.api import Api, local_url
    from addon.cli.env import DEFAULTS, ca_path, read_proxy_file
    from addon.state_folder import state_folder

    yield from doctor_machine.python()
    yield from doctor_proxy.config()
    try:
        state = state_folder()
        addresses = read_proxy_file()
    except ValueError as error:
        yield Finding("state", "wrong", str(error), "set TOOLGRAFT_HOME to a folder")
        return
    except typer.Exit:  # the message was printed
        yield from doctor_proxy.folder(state_folder())
        return
    control = (url or local_url()).rstrip("/")
    version = doctor_proxy.version_at(control)
    yield from doctor_machine.ports(doctor_proxy.ports_of(addresses, control) if version else [])
    if version:
        with Api(url) as api:  # creates a missing token, so only for a running proxy
            yield from doctor_proxy.proxy(api, version)
    elif url is not None:
        yield Finding("proxy", "wrong", f"no proxy answers at {url}", "start it, or leave out --url")
    else:
        yield from doctor_proxy.folder(state)
    where = addresses if version else {}
    reverse, regular = (where.get(kind) or [DEFAULTS[kind]] for kind in ("reverse", "regular"))
    yield from doctor_machine.ca(ca_path(url), os.environ)
    yield from doctor_machine.variables(os.environ, reverse, regular)
    yield from doctor_machine.keys(os.environ)
    yield from doctor_machine.upstream(upstream)


def _print(found: list[Finding]) -> None:
    from rich.text import Text

    console = output.console()
    for finding in found:
        label, style = _LABELS[finding.state]
        console.print(Text(f"{label:<6}", style=style) + Text(output.plain(finding.message)), soft_wrap=True)
        if finding.fix:
            console.print(Text(f"       fix: {output.plain(finding.fix)}"), soft_wrap=True)
    wrong = sum(finding.state == "wrong" for finding in found)
    console.print(f"{wrong} problem{'' if wrong == 1 else 's'}" if wrong else "nothing is wrong")
