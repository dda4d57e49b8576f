"""The arguments of calls: assembles streamed arguments, and enforces limits."""

import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from addon.core.framing.documents import MAX_DEPTH, Document, encode, is_too_deep
from addon.core.security.untrusted import cached_if_short

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
_VALUES = ("stringValue", "numberValue", "boolValue")


class Limits(NamedTuple):
    """The maximum number of calls in a step, and the maximum size of all their arguments in bytes of JSON."""

    calls: int
    args: int


NO_LIMITS = Limits(sys.maxsize, sys.maxsize)


class Bounds:
    """The part of the limits that the calls of one step have used. `calls` counts the calls of grafted tools."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.calls = 0
        self._args = 0

    @property
    def are_full(self) -> bool:
        """Whether the step has the maximum number of calls."""
        return self.calls >= self.limits.calls

    @property
    def are_exceeded(self) -> bool:
        """Whether a call beyond the limit was counted, so that the model got the error."""
        return self.calls > self.limits.calls

    def take(self) -> str | None:
        """Count a call. Returns why it cannot run, in words for the model; None if it can."""
        self.calls += 1
        most = self.limits.calls
        if self.calls <= most:
            return None
        return f"more than {most} calls in one step: this one and those after it were left out. Make {most} at most."

    def fault(self, args: object, *, is_too_long: bool = False) -> str | None:
        """Count the arguments of a call. Returns why they must be left out; None if they fit."""
        if is_too_deep(args):
            return f"arguments nested more than {MAX_DEPTH} levels deep"
        size = 0 if is_too_long or args is None else len(encode(args))
        if is_too_long or self._args + size > self.limits.args:
            return f"more than {self.limits.args} bytes of arguments in one step: those of this call were left out"
        self._args += size
        return None


class Assembly:
    """Arguments that arrive in pieces such as `{"jsonPath": "$.a[0].b", "stringValue": "x"}`. Strings of the same path
    are joined. Beyond `most` characters in total, pieces are dropped and `is_too_long` is set."""

    def __init__(self, most: int) -> None:
        self.is_too_long = False
        self._left = most
        self._args: Document = {}
        self._growing: list[tuple[Any, str | int]] = []  # the positions of strings that may grow

    def put(self, piece: Mapping[str, Any]) -> None:
        value = next((piece[name] for name in _VALUES if name in piece), None)
        path = _path(str(piece.get("jsonPath", "")))
        self._left -= len(str(piece.get("jsonPath", ""))) + (len(value) if isinstance(value, str) else 1)
        if self._left < 0:
            self.is_too_long = True
        if path and not self.is_too_long:
            self._set(path, value)

    def update(self, args: Document) -> None:
        self._args.update(args)

    def done(self) -> Document:
        for holder, key in self._growing:
            if isinstance(holder[key], _Growing):
                holder[key] = "".join(holder[key].texts)
        self._growing.clear()
        return self._args

    def _set(self, path: tuple[str | int, ...], value: Any) -> None:
        target: Any = self._args
        for key, following in zip(path, (*path[1:], None), strict=True):
            if isinstance(key, int):
                if not isinstance(target, list) or key > len(target):
                    return
                if key == len(target):
                    target.append(None)
            elif not isinstance(target, dict):
                return
            current = target[key] if isinstance(key, int) else target.get(key)
            if following is None:
                self._set_value(target, key, current, value)
                return
            if current is None:
                current = target[key] = [] if isinstance(following, int) else {}
            target = current

    def _set_value(self, target: Any, key: str | int, current: Any, value: Any) -> None:
        if not isinstance(value, str):
            target[key] = value
        elif isinstance(current, _Growing):
            current.texts.append(value)
        else:
            target[key] = _Growing([current, value] if isinstance(current, str) else [value])
            self._growing.append((target, key))


class _Growing(NamedTuple):
    """A string that may grow. Its pieces are joined once, at the end."""

    texts: list[str]


@cached_if_short(256)
def _path(text: str) -> tuple[str | int, ...]:
    """The steps of a jsonPath. Cached, because the same paths repeat."""
    return tuple(int(number) if number else (name or quoted) for name, number, quoted in _STEP.findall(text))
