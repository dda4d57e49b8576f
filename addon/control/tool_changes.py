"""Compares a toolset with the stored one: the differences by tool, and the stored values that masks stand for. Pure."""

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from addon.control.differences import differences
from addon.web.problems import Problem
from store.models import MASK, Executor, Toolset

type Part = Literal["toolset", "declaration", "built_in", "tool_config", "order"]

_MOST_LINES = 5000
"""The most lines of all diffs together."""


class ToolChange(BaseModel):
    """`part`: `toolset` (the session had none), `declaration` (with its rules), `built_in`, `tool_config`, `order` (of
    the declarations)."""

    part: Part
    name: str | None = Field(description="Of the function or the built-in tool.")
    change: Literal["added", "removed", "changed"]
    diff: str = Field(
        description="Lines of JSON, each behind ` `, `+` or `-`, below lines with `@@`. Empty: it is too long, or only "
        "values of executors' headers change, which are not shown."
    )


class _Piece(NamedTuple):
    """`masked`: without secrets, for display."""

    masked: Any
    whole: Any


def tool_changes(before: Toolset | None, after: Toolset) -> list[ToolChange]:
    """In the order of the new toolset; removed tools come last."""
    return list(_changes(before, after))


def _changes(before: Toolset | None, after: Toolset) -> Iterator[ToolChange]:
    if before is None:
        yield ToolChange(part="toolset", name=None, change="added", diff="")
    old, new = _pieces(before or Toolset()), _pieces(after)
    left = _MOST_LINES
    for part, name in [*new, *(key for key in old if key not in new)]:
        was, now = old.get((part, name)), new.get((part, name))
        if was is not None and now is not None and was.whole == now.whole:
            continue
        diff = _diff(was, now)
        left -= len(diff)
        change: Literal["added", "removed", "changed"] = (
            "added" if was is None else "removed" if now is None else "changed"
        )
        yield ToolChange(part=part, name=name, change=change, diff="\n".join(diff) if left >= 0 else "")
    yield from _order(before, after)


def _pieces(toolset: Toolset) -> dict[tuple[Part, str | None], _Piece]:
    masked = toolset.masked()
    pieces: dict[tuple[Part, str | None], _Piece] = {}
    for declaration in toolset.declarations:
        name = declaration["name"]
        pieces["declaration", name] = _Piece(_with_rules(masked, declaration), _with_rules(toolset, declaration))
    for builtin in toolset.builtins:
        for kind, value in builtin.items():
            pieces["built_in", kind] = _Piece({kind: value}, (kind, value))
    if toolset.tool_config is not None:
        pieces["tool_config", None] = _Piece(toolset.tool_config, toolset.tool_config)
    return pieces


def _order(before: Toolset | None, after: Toolset) -> Iterator[ToolChange]:
    was, now = ([one["name"] for one in toolset.declarations] if toolset else [] for toolset in (before, after))
    if was != now and sorted(was) == sorted(now):
        diff = _diff(_Piece(was, was), _Piece(now, now))
        yield ToolChange(part="order", name=None, change="changed", diff="\n".join(diff))


def _with_rules(toolset: Toolset, declaration: dict[str, Any]) -> dict[str, Any]:
    rules = toolset.rules.get(declaration["name"])
    return {**declaration, **(rules.model_dump(mode="json", exclude_defaults=True) if rules is not None else {})}


def _diff(was: _Piece | None, now: _Piece | None) -> list[str]:
    return differences(_text(was), _text(now), ("before", "after"))[2:]


def _text(piece: _Piece | None) -> str:
    return "" if piece is None else json.dumps(piece.masked, indent=2, ensure_ascii=False)


def restore_masked(toolset: Toolset, stored: Toolset | None) -> Toolset:
    """The toolset with its masks replaced by the stored values.

    Raises Problem (422) if there is no stored value, or if it was given for another host.
    """
    rules = dict(toolset.rules)
    for name, rule in toolset.rules.items():
        if rule.executor and MASK in rule.executor.headers.values():
            before = stored.rules.get(name) if stored else None
            executor = _restore(name, rule.executor, before.executor if before else None)
            rules[name] = rule.model_copy(update={"executor": executor})
    return toolset.model_copy(update={"rules": rules})


def _restore(tool: str, executor: Executor, stored: Executor | None) -> Executor:
    headers = dict(executor.headers)
    for name, value in executor.headers.items():
        if value != MASK:
            continue
        why = None
        if stored is None or name not in stored.headers:
            why = f"{MASK} stands for the stored value, but none is stored: give the value"
        elif _origin(executor) != _origin(stored):
            why = "the stored value was given for another host: give the value again"
        if stored is None or why:
            field = f"executor.headers.{name}"
            raise Problem(422, f"{field}: {why}", field=field, tool=tool)
        headers[name] = stored.headers[name]
    return executor.model_copy(update={"headers": headers})


def _origin(executor: Executor) -> tuple[str, str | None, int | None]:
    parts = urlsplit(executor.url or "")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
