r"""Splits a byte stream into server-sent events without changing a byte.

The decoder finds the end and the data of each event. `raw` keeps the original bytes, so that an event that needs no
change is forwarded unchanged. Joining every `raw` gives the input again. The decoder does not parse JSON.

An event ends with a blank line; LF, CRLF and CR each end a line. A CR at the end of the buffer waits for the next byte,
which may be its LF. A blank line that ends no event belongs to the next event, or is an event without data if another
blank line follows.
"""

from __future__ import annotations

import re

import msgspec

_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LONGEST_BLANK_LINE = 4
_BOM = b"\xef\xbb\xbf"
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
        for line in raw.removeprefix(_BOM).splitlines()
        if line.startswith(b"data:") or line == b"data"
    ]
    return SseEvent(raw, b"\n".join(values) if values else None)
