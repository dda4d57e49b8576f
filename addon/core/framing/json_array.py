r"""Splits a streamed JSON array into its elements without changing a byte.

`streamGenerateContent` without `alt=sse` sends `[{…}\n,\r\n{…}\n]`. The decoder finds the end of each element. Joining
every `raw` gives the input again. The decoder only counts brackets outside strings: it does not check whether an
element is valid JSON.

- Elements are objects or arrays. A bare top-level object (the form of the service's errors) is one element.
- `]` and all bytes after it, and any other bytes, pass as items without data as soon as they arrive.
"""

from __future__ import annotations

import re

import msgspec

OPEN = b"["
SEPARATOR = b",\r\n"
CLOSE = b"]"

_BETWEEN = re.compile(rb"[\s,]*+")
# Everything up to the next bracket outside strings, or up to the quote of an incomplete string.
_PLAIN = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OPENING, _CLOSING, _QUOTE = b"{[", b"}]", 0x22


class ArrayItem(msgspec.Struct, frozen=True, gc=False):
    """`raw`: all bytes since the previous item, which are `prefix` (the bracket or separator) and `data` (the element).

    Without an element, `data` is None and `prefix` equals `raw`.
    """

    raw: bytes
    prefix: bytes
    data: bytes | None


class ArrayDecoder:
    """`feed` takes chunks cut anywhere and returns the elements that each completes. `flush` ends the stream."""

    __slots__ = ("_depth", "_in_string", "_opened", "_over", "_pending", "_scanned", "_start")

    def __init__(self) -> None:
        self._pending = bytearray()  # since the last item
        self._scanned = 0  # how many bytes of `_pending` have been read
        self._start = 0  # the start of the current element, if depth > 0
        self._depth = 0  # the depth of brackets in the element
        self._in_string = False
        self._opened = False  # whether the array's own bracket was read
        self._over = False  # no further element is possible

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete element have arrived."""
        return len(self._pending)

    @property
    def is_over(self) -> bool:
        """Whether the array has ended, or bytes have arrived that cannot be an element."""
        return self._over

    def feed(self, chunk: bytes) -> list[ArrayItem]:
        self._pending += chunk
        items: list[ArrayItem] = []
        while not self._over and (self._depth or self._begin()):
            if not self._finish():
                return items
            items.append(self._take(self._start))
            self._over = not self._opened
        if self._over and self._pending:
            items.append(self._take(None))
        return items

    def flush(self) -> list[ArrayItem]:
        """The remaining bytes as one item without data. An incomplete element does not count as one."""
        return [self._take(None)] if self._pending else []

    def _begin(self) -> bool:
        """Find the first byte of the next element. Returns False if it has not arrived, or cannot."""
        position = self._between()
        if not self._opened and self._pending[position : position + 1] == OPEN:
            self._opened = True
            self._scanned = position + 1
            position = self._between()
        self._scanned = position
        if position == len(self._pending):
            return False
        first = self._pending[position]
        if first not in (_OPENING if self._opened else b"{"):
            self._over = True
            return False
        self._start, self._scanned, self._depth = position, position + 1, 1
        return True

    def _between(self) -> int:
        found = _BETWEEN.match(self._pending, self._scanned)
        assert found is not None
        return found.end()

    def _finish(self) -> bool:
        """Read up to the element's end. Returns False if it has not arrived."""
        buffer, position, size = self._pending, self._scanned, len(self._pending)
        while self._depth and position < size:
            if self._in_string:
                position = _end(_IN_STRING, buffer, position)
                if position == size or buffer[position] != _QUOTE:
                    break  # at the end, or at an incomplete escape
                self._in_string = False
                position += 1
                continue
            position = _end(_PLAIN, buffer, position)
            if position == size:
                break
            byte = buffer[position]
            position += 1
            if byte == _QUOTE:
                self._in_string = True
            elif byte in _CLOSING:
                self._depth -= 1
            else:
                self._depth += 1
        self._scanned = position
        return not self._depth

    def _take(self, start: int | None) -> ArrayItem:
        """Cut off the first item: the element from `start` to the scanned position, or all bytes if `start` is None."""
        end = len(self._pending) if start is None else self._scanned
        raw = bytes(self._pending[:end])
        del self._pending[:end]
        self._scanned = 0
        return ArrayItem(raw, raw, None) if start is None else ArrayItem(raw, raw[:start], raw[start:])


def _end(pattern: re.Pattern[bytes], buffer: bytearray, position: int) -> int:
    found = pattern.match(buffer, position)
    assert found is not None
    return found.end()
