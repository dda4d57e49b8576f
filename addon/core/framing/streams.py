r"""Byte streams: decodes content encodings, and splits streams into their events or elements without changing a byte.

- `decompressor`: gzip and deflate piece by piece. The upstream may use one although none was requested. A gzip body may
  hold several members, and `deflate` may have a zlib header or not: RFC 9110 requires it, and some servers omit it. A
  body that ends before its encoding does was cut off. A small body may expand to more than fits in memory, so the
  output is limited, and nothing is produced beyond the limit.
- `SseDecoder`: server-sent events. An event ends with a blank line; LF, CRLF and CR each end a line. A CR at the end of
  the buffer waits for the next byte, which may be its LF. A blank line that ends no event belongs to the next event, or
  is an event without data if another blank line follows.
- `ArrayDecoder`: a streamed JSON array. `streamGenerateContent` without `alt=sse` sends `[{…}\n,\r\n{…}\n]`. Elements
  are objects or arrays. A bare top-level object (the form of the service's errors) is one element. `]` and all bytes
  after it, and any other bytes, pass as items without data as soon as they arrive.

Both decoders keep the original bytes (`raw`), so that an event that needs no change is forwarded unchanged. Joining
every `raw` gives the input again. They do not parse JSON.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

Decompress = Callable[[bytes], bytes]
"""Takes the next bytes, b"" at the end. Returns the decoded bytes. Raises BadEncoding, also at the end."""

_LARGEST = 64 * 1024 * 1024
"""The most decoded bytes produced in one step."""

_PIECE = 16 * 1024
"""The most encoded bytes decoded in one step. zlib copies the remaining bytes after each member."""


class BadEncoding(ValueError):
    """The bytes do not fit their content encoding."""


class TooLong(BadEncoding):
    """The decoded body is longer than allowed."""


def decompressor(encodings: str, most: int = sys.maxsize) -> Decompress | None:
    """The decoder for a Content-Encoding header. None unless it names only gzip, only deflate, or nothing. The decoder
    raises TooLong after more than `most` bytes, even without any encoding."""
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    match names:
        case []:
            return _Decoder(most)
        case ["gzip" | "x-gzip"]:
            return _Gzip(most)
        case ["deflate"]:
            return _Deflate(most)
    return None


class _Decoder:
    """Without an encoding."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = most

    def __call__(self, chunk: bytes) -> bytes:
        return self._counted(chunk)

    def _counted(self, data: bytes) -> bytes:
        self._rest -= len(data)
        if self._rest < 0:
            raise TooLong(f"it has more than {self._most} bytes")
        return data


class _Gzip(_Decoder):
    name = "gzip"
    _member: Any = None  # the decoder of the current member

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk and not self._is_over():
            raise BadEncoding(f"the {self.name} body was cut off")
        pieces = (chunk[start : start + _PIECE] for start in range(0, len(chunk), _PIECE))
        return b"".join([data for piece in pieces for data in self._decoded(piece)])

    def _decoded(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._member is None or self._member.eof:
                if not (chunk := self._begin(chunk)):
                    break
            try:
                yield self._counted(self._member.decompress(chunk, min(self._rest + 1, _LARGEST)))
            except zlib.error as error:
                raise BadEncoding(f"the body is not {self.name}: {error}") from None
            chunk = self._member.unconsumed_tail or self._member.unused_data

    def _is_over(self) -> bool:
        return self._member is None or self._member.eof

    def _begin(self, chunk: bytes) -> bytes:
        """Begin a member. Zeros may follow each member."""
        if self._member is not None and not (chunk := chunk.lstrip(b"\0")):
            return b""
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        return chunk


class _Deflate(_Gzip):
    """With or without a zlib header, as shown by the first two bytes."""

    name = "deflate"
    _head = b""

    def _is_over(self) -> bool:
        return not self._head and super()._is_over()

    def _begin(self, chunk: bytes) -> bytes:
        if self._member is not None:
            raise BadEncoding("something follows the deflate body")
        self._head, head = b"", self._head + chunk
        if len(head) < 2:
            self._head = head
            return b""
        is_zlib = head[0] & 15 == 8 and int.from_bytes(head[:2]) % 31 == 0
        self._member = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        return head


_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LONGEST_BLANK_LINE = 4
BOM = b"\xef\xbb\xbf"
_DATA = b"data: "


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `raw`: with its terminating blank line. `data`: its data lines joined by LF, or None."""

    raw: bytes
    data: bytes | None


class SseDecoder:
    """`feed` takes chunks cut anywhere and returns the events that each completes. `flush` ends the stream."""

    __slots__ = ("_pending", "_searched")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0  # no blank line ends before this position

    @property
    def is_between(self) -> bool:
        """Whether no incomplete event is buffered."""
        return not self._pending

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete event have arrived."""
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if not self._pending:
            return self._cut(chunk)
        self._pending += chunk
        if not self._has_complete_event():
            return []
        buffer = bytes(self._pending)
        self._pending.clear()
        return self._cut(buffer)

    def flush(self) -> list[SseEvent]:
        """The remaining bytes as one event, even without its blank line; [] if there are none."""
        raw = bytes(self._pending)
        self._pending.clear()
        return [_event(raw)] if raw else []

    def _has_complete_event(self) -> bool:
        start = max(0, self._searched - _LONGEST_BLANK_LINE + 1)
        self._searched = len(self._pending)
        found = _BLANK_LINE.search(self._pending, start)
        return found is not None and not _ends_with_cr(found, len(self._pending))

    def _cut(self, buffer: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        start, size = 0, len(buffer)
        while start < size:
            # Three searches in C recognise the usual event: one data line that ends with CRLF CRLF or LF LF.
            newline = buffer.find(b"\n", start)
            if newline > 0 and buffer.startswith(_DATA, start):
                end = 0
                if buffer.startswith(b"\r\n\r\n", newline - 1):
                    line_end, end = newline - 1, newline + 3
                elif buffer.startswith(b"\n\n", newline):
                    line_end, end = newline, newline + 2
                if end and buffer.find(b"\r", start, line_end) < 0:
                    events.append(SseEvent(buffer[start:end], buffer[start + len(_DATA) : line_end]))
                    start = end
                    continue
            found = _BLANK_LINE.search(buffer, start)
            if found is None or _ends_with_cr(found, size):
                break
            events.append(_event(buffer[start : found.end()]))
            start = found.end()
        self._pending += buffer[start:]
        self._searched = len(self._pending)
        return events


def sse_event(document: bytes) -> bytes:
    """An event in the framing that every Gemini client can parse. Raises ValueError if the document is not one line."""
    if b"\n" in document or b"\r" in document:
        raise ValueError("the data of an event must be one line")
    return b"data: %b\r\n\r\n" % document


def _ends_with_cr(found: re.Match[bytes], size: int) -> bool:
    """Whether a blank line ends with a CR whose LF may still arrive."""
    return found.end() == size and found.string[size - 1] == 0x0D


def _event(raw: bytes) -> SseEvent:
    values = [
        line[5:].removeprefix(b" ")
        for line in raw.removeprefix(BOM).splitlines()
        if line.startswith(b"data:") or line == b"data"
    ]
    return SseEvent(raw, b"\n".join(values) if values else None)


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
        return _end(_BETWEEN, self._pending, self._scanned)

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
