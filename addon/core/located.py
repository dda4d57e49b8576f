"""A document with the line of each of its values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

type KeyPath = tuple[str | int, ...]
"""The keys and list indexes that lead to a value; () is the document."""


class Located(NamedTuple):
    """`lines` has the line, from 1, of each key and list item."""

    values: Any
    lines: Mapping[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """The line of a value, or of the innermost one around it that the text has."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)
