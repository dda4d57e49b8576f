"""TOML documents with the line of every key and list item, which tomllib does not give.

tomllib reads the document. A scanner then walks over the same text, which is known to be valid, and notes the lines.
"""

import re
import tomllib
from bisect import bisect_right
from typing import Any

from addon.core.framing.documents import Document
from addon.core.located import KeyPath, Located

_MOST_LEVELS = 100
_MESSAGE = re.compile(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
_BLANK = re.compile(r"[ \t\r\n]*+(?:#[^\n]*+[ \t\r\n]*+)*+")
_SPACE = re.compile(r"[ \t]*+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]++")
_STRINGS = (
    re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"{3,5}', re.DOTALL),
    re.compile(r"'''(?:[^']|'{1,2}(?!'))*+'{3,5}"),
    re.compile(r'"(?:[^"\\\n]|\\.)*+"'),
    re.compile(r"'[^'\n]*+'"),
)
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]++")


class TomlError(ValueError):
    """A text that is not TOML. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def parse_toml(text: str) -> Located:
    """A table that only the headers of its parts name has the line of the first of them. Raises TomlError."""
    try:
        values = tomllib.loads(text)
        if _is_deep(values):
            raise RecursionError
        return Located(values, _Scanner(text).lines())
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        found = _MESSAGE.fullmatch(str(error))
        message, line = (found[1], found[2]) if found is not None else (str(error), None)
        raise TomlError(text.rstrip().count("\n") + 1 if line is None else int(line), message) from None
    except RecursionError:
        raise TomlError(1, f"values are nested more than {_MOST_LEVELS} levels deep") from None


def _is_deep(values: Document) -> bool:
    """Whether the values are nested so deeply that recursion over them, and their paths, would be a problem."""
    level: list[Any] = [values]
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_ends = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}
        self._counts: dict[KeyPath, int] = {}
        """The number of tables so far in each list of tables (`[[…]]`)."""

    def lines(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text.startswith("[[", self._at):
                table = self._list_header()
            elif self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._lines

    @property
    def _line(self) -> int:
        return bisect_right(self._line_ends, self._at - 1) + 1

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    def _header(self) -> KeyPath:
        line = self._line
        self._at += 1
        path = self._enter(self._keys(), line)
        self._at += 1
        self._lines[path] = line
        return path

    def _list_header(self) -> KeyPath:
        line = self._line
        self._at += 2
        *parents, last = self._keys()
        path = (*self._enter(parents, line), last)
        self._at += 2
        self._lines.setdefault(path, line)
        index = self._counts[path] = self._counts.get(path, -1) + 1
        self._lines[*path, index] = line
        return (*path, index)

    def _enter(self, keys: list[str], line: int) -> KeyPath:
        """The path of a header's keys: in a list of tables, that of its last table."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            self._lines.setdefault(path, line)
            if path in self._counts:
                path = (*path, self._counts[path])
        return path

    def _pair(self, table: KeyPath) -> None:
        line, path = self._line, table
        for key in self._keys():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _keys(self) -> list[str]:
        """The parts of a dotted key, and the blanks around them."""
        keys = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._skip(_BARE_KEY):
                keys.append(self._text[start : self._at])
            else:
                self._string()
                keys.append(_decoded(self._text[start : self._at]))
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _string(self) -> bool:
        return any(self._skip(pattern) for pattern in _STRINGS)

    def _value(self, path: KeyPath) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._items(path)
        elif opening == "{":
            self._inline_table(path)
        elif not self._string():
            self._skip(_PLAIN_VALUE)

    def _items(self, path: KeyPath) -> None:
        index = 0
        while not self._closed("]"):
            self._lines[*path, index] = self._line
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        while not self._closed("}"):
            self._pair(path)

    def _closed(self, bracket: str) -> bool:
        """Move over the opening bracket, or the comma after the previous item. Returns whether the closing bracket
        follows, and moves over it."""
        self._skip(_BLANK)
        if self._text[self._at] in "[{," and not self._text.startswith(bracket, self._at):
            self._at += 1
            self._skip(_BLANK)
        ended = self._text.startswith(bracket, self._at)
        self._at += ended
        return ended


def _decoded(quoted: str) -> str:
    key: Any = tomllib.loads(f"key = {quoted}")["key"]
    return str(key)
