"""Shared options of commands, as parameter types."""

from typing import Annotated

import typer

from addon.cli.completion import sessions


def session_name(value: str | None) -> str | None:
    if value is not None:
        from store.models import SESSION_FORM, SESSION_NAME

        if not SESSION_NAME.fullmatch(value):
            raise typer.BadParameter(f"{value!r} must be {SESSION_FORM}")
    return value


def _http_url(value: str | None) -> str | None:
    if value is not None:
        from addon.urls import base_url, redacted

        try:
            base_url(value)
        except ValueError as error:
            raise typer.BadParameter(f"{redacted(value)}: the control API's URL {error}") from None
    return value


Session = Annotated[
    str,
    typer.Option(
        "--session",
        "-s",
        envvar="TOOLGRAFT_SESSION",
        callback=session_name,
        autocompletion=sessions,
        help="The session.",
        metavar="NAME",
    ),
]
AnySession = Annotated[
    str | None,
    typer.Option(
        "--session",
        "-s",
        envvar="TOOLGRAFT_SESSION",
        callback=session_name,
        autocompletion=sessions,
        help="Only this session. Default: all sessions.",
        metavar="NAME",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="TOOLGRAFT_URL",
        callback=_http_url,
        help="The control API's URL. Default: the proxy on this machine.",
        metavar="URL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Keep running, and print new and changed items.")]
