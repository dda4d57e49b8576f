r"""Server-sent events, cut out of a byte stream piece by piece without changing a byte of it.

The decoder tells where an event ends and what its data is; `raw` is what came, so that an event that needs no change
is forwarded as it is, and joining every `raw` gives the input again, whatever the input. It knows nothing of JSON.

How it cuts: an event ends with a blank line, where LF, CRLF and CR each end a line. A CR that ends the buffer is not
decided before the next byte, as an LF may belong to it. A blank line that ends no event goes with the next event, or
is an event without data where another blank line follows.
"""

from __future__ import annotations

import re

import msgspec

_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LONGEST_BLANK_LINE = 4
_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: `raw` with its terminating blank line; `data` its data lines joined by LF, None without any."""

    raw: bytes
    data: bytes | None


class SseDecoder:
    """Feed it chunks cut anywhere; it returns the events that each completes. `flush` ends the stream."""

    __slots__ = ("_pending", "_searched")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0  # no blank line ends before here

    @property
    def is_between(self) -> bool:
        """Whether all that came was whole events."""
        return not self._pending

    @property
    def pending(self) -> int:
        """How many bytes of an event have come that is not whole."""
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if not self._pending:
            return self._cut(chunk)
        self._pending += chunk
        if not self._decided():
            return []
        buffer = bytes(self._pending)
        self._pending.clear()
        return self._cut(buffer)

    def flush(self) -> list[SseEvent]:
        """What is left, as one event even if its blank line never came; nothing if nothing is left."""
        raw = bytes(self._pending)
        self._pending.clear()
        return [_event(raw)] if raw else []

    def _decided(self) -> bool:
        start = max(0, self._searched - _LONGEST_BLANK_LINE + 1)
        self._searched = len(self._pending)
        found = _BLANK_LINE.search(self._pending, start)
        return found is not None and not _open_ended(found, len(self._pending))

    def _cut(self, buffer: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        start, size = 0, len(buffer)
        while start < size:
            # The usual event, one data line ended by CRLF CRLF or LF LF, is told by three searches in C.
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
            if found is None or _open_ended(found, size):
                break
            events.append(_event(buffer[start : found.end()]))
            start = found.end()
        self._pending += buffer[start:]
        self._searched = len(self._pending)
        return events


def encode(document: bytes) -> bytes:
    """An event in the one framing that every Gemini client parses. ValueError if the document is not one line."""
    if b"\n" in document or b"\r" in document:
        raise ValueError("the data of an event must be one line")
    return b"data: %b\r\n\r\n" % document


def _open_ended(found: re.Match[bytes], size: int) -> bool:
    """Whether a blank line ends with a CR whose LF may still come."""
    return found.end() == size and found.string[size - 1] == 0x0D


def _event(raw: bytes) -> SseEvent:
    values = [
        line[5:].removeprefix(b" ")
        for line in raw.removeprefix(_BOM).splitlines()
        if line.startswith(b"data:") or line == b"data"
    ]
    return SseEvent(raw, b"\n".join(values) if values else None)
