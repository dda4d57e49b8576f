"""Arguments that commands share: options, their completion with the running proxy's data, and users' JSON."""

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from addon.cli.output import fail

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MOST = 50
_TIMEOUT = 2.0
"""Seconds that a completion may wait for the proxy."""


def waiting_for_approval(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    return _calls(context, incomplete, lambda call: call["approval"] == "waiting")


def waiting_for_result(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    return _calls(context, incomplete, lambda call: call["approval"] != "waiting")


def sessions(context: typer.Context, incomplete: str) -> Iterator[str]:
    for session in _items(context, "/v1/sessions"):
        if session["name"].startswith(incomplete):
            yield session["name"]


def _calls(context: typer.Context, incomplete: str, fits: Any) -> Iterator[tuple[str, str]]:
    for call in _items(context, "/v1/calls?status=pending"):
        if call["call_id"].startswith(incomplete) and fits(call):
            # zsh evaluates descriptions
            yield call["call_id"], call["name"] if _PLAIN_NAME.fullmatch(call["name"]) else ""


def _items(context: typer.Context, path: str) -> list[Any]:
    """The first items of a list; none if the proxy does not answer: a completion prints no errors."""
    from addon.cli.api import Api

    with contextlib.redirect_stderr(io.StringIO()):
        try:
            with Api(context.params.get("url"), timeout=_TIMEOUT) as api:
                found: list[Any] = api.get(path, limit=str(_MOST))["items"]
                return found
        except typer.Exit:
            return []


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


def read_json(source: str) -> Any:
    """The JSON document of a file, or of stdin for `-`. Ends the command on an error."""
    if source == "-":
        return parse_json(sys.stdin.buffer.read(), "stdin")
    try:
        return parse_json(Path(source).read_bytes(), source)
    except OSError as error:
        fail(f"{source}: {error.strerror}")


def parse_json(text: bytes, where: str, hint: str = "") -> Any:
    """Parse strictly (no NaN, no Infinity). `where` begins error messages, `hint` ends them."""
    try:
        return json.loads(text.decode("utf-8-sig"), parse_constant=_not_json)
    except json.JSONDecodeError as error:
        fail(f"{where}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}{hint}")
    except UnicodeDecodeError as error:
        fail(f"{where}: not UTF-8 at byte {error.start}")
    except RecursionError:
        fail(f"{where}: nested too deeply")
    except ValueError as error:
        fail(f"{where}: not JSON: {error}{hint}")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
