"""Removes unsupported members from requests. Pure: a request is never changed in place."""

import re
from collections.abc import Sequence
from typing import Any

type Path = tuple[str | int, ...]
"""The keys and indices that lead to a member."""

_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[]+)")


def path_of(position: str) -> Path:
    """`tools[1].strict` as a path."""
    return tuple(int(index) if index else key for index, key in _STEP.findall(position))


def name_of(path: Path) -> str:
    """A path as a position."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def has(value: Any, path: Path) -> bool:
    """Whether the path leads to a member."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return False
    return bool(path)


def without(value: Any, path: Path) -> Any:
    """The value without the member at this path."""
    step, *rest = path
    if rest:
        inner = without(value[step], tuple(rest))
        if isinstance(value, dict):
            return {**value, step: inner}
        return [*value[:step], inner, *value[int(step) + 1 :]]
    if isinstance(value, dict):
        return {key: member for key, member in value.items() if key != step}
    return [*value[:step], *value[int(step) + 1 :]]


def original(path: Path, before: Sequence[Path]) -> Path:
    """The path in the request before the members at `before` were removed. They are in list order."""
    found: list[str | int] = []
    for step in path:
        if isinstance(step, int):
            for one in before:
                if len(one) == len(found) + 1 and list(one[:-1]) == found and int(one[-1]) <= step:
                    step += 1
        found.append(step)
    return tuple(found)
