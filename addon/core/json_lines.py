"""The lines of the keys and list items of a JSON document, which Python's json does not give."""

import json
import re
from bisect import bisect_right

from addon.core.located import KeyPath

_BLANK = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"')
_PLAIN = re.compile(r"[^,\]}\s]++")


def json_lines(text: str) -> dict[KeyPath, int]:
    """`text` is valid JSON. Raises RecursionError if it is nested too deeply."""
    return _Scanner(text).lines()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_ends = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}

    def lines(self) -> dict[KeyPath, int]:
        self._skip(_BLANK)
        self._value(())
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        assert found is not None, "not JSON"
        self._at = found.end()

    def _note(self, path: KeyPath, at: int) -> None:
        self._lines[path] = bisect_right(self._line_ends, at - 1) + 1

    def _value(self, path: KeyPath) -> None:
        match self._text[self._at]:
            case "{":
                while not self._ended("}"):
                    start = self._at
                    self._skip(_STRING)
                    key = json.loads(self._text[start : self._at])
                    self._note((*path, key), start)
                    self._skip(_BLANK)
                    self._at += 1  # the colon
                    self._skip(_BLANK)
                    self._value((*path, key))
            case "[":
                index = 0
                while not self._ended("]"):
                    self._note((*path, index), self._at)
                    self._value((*path, index))
                    index += 1
            case '"':
                self._skip(_STRING)
            case _:
                self._skip(_PLAIN)

    def _ended(self, bracket: str) -> bool:
        """Move over the opening bracket, or the comma after an item. Returns whether the closing bracket follows, and
        moves over it."""
        self._skip(_BLANK)
        if not self._text.startswith(bracket, self._at):
            self._at += 1
            self._skip(_BLANK)
        ended = self._text.startswith(bracket, self._at)
        self._at += ended
        return ended
