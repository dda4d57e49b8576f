"""Completion of arguments with the running proxy's data."""

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

import typer

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
