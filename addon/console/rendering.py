"""HTML of the pages. All text of models, tools and clients is escaped, including control and bidirectional
characters."""

import datetime
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pydantic_core
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import Response

from addon.core.security.untrusted import printable, printable_json

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

LONGEST = 20_000
"""The most characters of a value that a page shows."""

_MOST_LINES = 400
"""The most lines of a diff that a page shows."""


def page(template: str, values: Mapping[str, Any]) -> Response:
    return Response(_environment.get_template(template).render(values), headers=HEADERS, media_type="text/html")


def one_line(value: object, longest: int = LONGEST) -> str:
    """A text on one line, without characters that are invisible or change the order of others."""
    return _cut(printable(_head(str(value), longest)), longest)


def multi_line(value: object, longest: int = LONGEST) -> str:
    return _cut(printable(_head(str(value), longest), lines=True), longest)


def json_text(value: object, longest: int = LONGEST) -> str:
    """Indented JSON; on one line if it is too long or nested too deeply."""
    return _cut(printable_json(_head(_in_lines(value, longest), longest)), longest)


def whole_json(value: object, longest: int) -> str | None:
    """The whole JSON, indented, for editing; None if it is longer."""
    text = _in_lines(value, longest)
    if len(text) > longest:
        return None
    text = printable_json(text)
    return text if len(text) <= longest else None


def _in_lines(value: object, longest: int) -> str:
    text = pydantic_core.to_json(value).decode()
    if len(text) <= longest:  # indenting is a hundred times slower
        with suppress(RecursionError):
            text = json.dumps(value, indent=2, ensure_ascii=False)
    return text


def json_excerpt(value: object, longest: int) -> str:
    """The beginning of the JSON, on one line."""
    return _cut(printable(_head(pydantic_core.to_json(value).decode(), longest)), longest)


class Room:
    """Limits the values of one page: each to `longest` characters, and all together to `left`; further values are cut
    to `least`. Rendering a page blocks the event loop."""

    def __init__(self, longest: int, left: int = 200_000, least: int = 200) -> None:
        self._longest = longest
        self._left = left
        self._least = least

    def lines(self, value: object) -> str:
        """See `multi_line`."""
        return self._taken(multi_line, value)

    def json(self, value: object) -> str:
        """See `json_text`."""
        return self._taken(json_text, value)

    def _taken(self, written: Callable[[object, int], str], value: object) -> str:
        text = written(value, max(min(self._longest, self._left), self._least))
        self._left -= len(text)
        return text


def iso_time(seconds: float) -> str:
    """ISO 8601, in UTC; the page shows it in the browser's zone."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _head(text: str, longest: int) -> str:
    """The beginning of the text, cut before escaping, which takes time for each character."""
    return text[: longest + 1]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "…"


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_environment.filters |= {
    "one_line": one_line,
    "multi_line": multi_line,
    "json_text": json_text,
    "json_excerpt": json_excerpt,
    "iso_time": iso_time,
    "duration": duration,
}


def marked(lines: list[str]) -> list[tuple[str, str]]:
    """The first lines of a diff, each with its mark: `put-in`, `taken-out` or ""."""
    marks = {"+": "put-in", "-": "taken-out"}
    found = [("" if line.startswith(("+++ ", "--- ")) else marks.get(line[:1], ""), line) for line in lines]
    rest = len(found) - _MOST_LINES
    return [*found[:_MOST_LINES], *([("", f"… and {rest} more lines")] if rest > 0 else [])]
