"""The rules in a declaration for running the tool's calls: fields beside `name` that never go upstream.

`executor` (`{"type": "http", "url", "headers"}` or `{"type": "worker"}`), `approval`, `after`, `idempotent`,
`redeliver`, `cache_ttl`, `timeout`, `retries`; only for the Live API `behavior` and `scheduling`. This module checks
and copies the rules; it runs nothing. Pure: the document is never changed."""

import graphlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from addon.core.framing.documents import Document

_HEADER = re.compile(r"[A-Za-z0-9_-]+")
_EXECUTOR = {"http": ("type", "url", "headers"), "worker": ("type",)}


class BadRule(ValueError):
    """`field`: the dotted path to the error, from the declaration. `message`: what is wrong, and what fits."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field
        self.message = message


def rules_of(tool: Mapping[str, Any]) -> Document:
    """The rules that a declaration sets. Null, false and empty values set no rule. Raises BadRule."""
    found = {name: read(tool[name], name) for name, read in _READERS.items() if tool.get(name) is not None}
    if "scheduling" in found and found.get("behavior") != "NON_BLOCKING":
        raise BadRule("scheduling", "is allowed only with behavior NON_BLOCKING: the model waits for all other calls")
    return {name: rule for name, rule in found.items() if rule is not False and rule != []}


def unknown_in_order(rules: Mapping[str, Document], names: Iterable[str]) -> tuple[str, str] | None:
    """The first tool with an unknown name in its `after`, and that name."""
    known = set(names)
    return next(((tool, n) for tool, rule in rules.items() for n in rule.get("after", ()) if n not in known), None)


def cycle_in_order(rules: Mapping[str, Document]) -> list[str] | None:
    """A cycle in the `after` rules, as tool names: the first is also the last. None if there is none."""
    try:
        graphlib.TopologicalSorter({tool: rule.get("after", ()) for tool, rule in rules.items()}).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return None


def _executor(value: object, at: str) -> Document:
    if not isinstance(value, dict):
        raise BadRule(at, 'must be an object, such as {"type": "worker"} or {"type": "http", "url": …}')
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _EXECUTOR:
        raise BadRule(f"{at}.type", 'is missing: "http" or "worker"' if kind is None else 'must be "http" or "worker"')
    for key in value:
        if key not in _EXECUTOR[kind]:
            raise BadRule(f"{at}.{key}", f"is not known; known fields are {', '.join(_EXECUTOR[kind])}")
    if kind == "worker":
        return {"type": kind}
    executor: Document = {"type": kind, "url": _url(value.get("url"), f"{at}.url")}
    if headers := _headers(value.get("headers"), f"{at}.headers"):
        executor["headers"] = headers
    return executor


def _url(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise BadRule(at, "is missing" if value is None else "must be a string")
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not value.isprintable() or " " in value:
        raise BadRule(at, "must be the http or https URL of an endpoint, such as https://tools.example/run")
    if parts.username is not None:
        raise BadRule(
            at, "must not hold a user name: everyone who can read the tools sees the URL (headers are not shown)"
        )
    return value


def _headers(value: object, at: str) -> dict[str, str]:
    """Checks headers. Error messages never show their values, which may be secrets."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRule(at, "must be an object of names and values")
    for name, content in value.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise BadRule(at, f"holds {str(name)[:60]!r}, which is not a header name")
        if not isinstance(content, str) or not content.isascii() or not content.isprintable():
            raise BadRule(f"{at}.{name}", "must be printable ASCII text on one line")
    return dict(value)


def _flag(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise BadRule(at, "must be true or false")
    return value


def _names(value: object, at: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadRule(at, "must be a list of tools' names")
    return list(dict.fromkeys(value))


def _seconds(what: str, fits: Callable[[float], bool]) -> Callable[[object, str], float]:
    def read(value: object, at: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise BadRule(at, f"must be a number of seconds, {what}")
        return value

    return read


def _retries(value: object, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10:
        raise BadRule(at, "must be a whole number from 0 to 10")
    return value


def _one_of(*words: str) -> Callable[[object, str], str]:
    def read(value: object, at: str) -> str:
        if not isinstance(value, str) or value.upper() not in words:
            raise BadRule(at, f"must be one of {', '.join(words)}")
        return value.upper()

    return read


_READERS: dict[str, Callable[[object, str], Any]] = {
    "executor": _executor,
    "approval": _flag,
    "after": _names,
    "idempotent": _flag,
    "redeliver": _flag,
    "cache_ttl": _seconds("0 or more", lambda value: 0 <= value < math.inf),
    "timeout": _seconds("above 0 and at most 3600", lambda value: 0 < value <= 3600),
    "retries": _retries,
    "behavior": _one_of("BLOCKING", "NON_BLOCKING"),
    "scheduling": _one_of("SILENT", "WHEN_IDLE", "INTERRUPT"),
}
RULES = tuple(_READERS)
