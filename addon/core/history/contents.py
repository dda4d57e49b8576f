"""Reads the Contents of a history: their positions, roles and parts, with digests instead of long inline data.

Inline data is images, sounds and documents. With digests in its place, later readers never scan it. Clients send the
data of an answer back in either alphabet of base64, with or without padding, with or without escaped slashes, and
`data_identity` is the same for all of these. Each client sends its own data in one form.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import xxhash

from addon.core.framing.documents import Malformed, as_list

_WINDOW = 2**15
LONG_DATA = 2 * _WINDOW
"""Data of this size in bytes is always replaced, because it contains a whole window without a quote."""

_DIGESTED = _WINDOW // 2
"""From this size on, data is identified by its digest. Long data exceeds it even without escapes and padding."""

_BEFORE = re.compile(
    rb'(?<!\\)"inline(?:Data|_data)"\s*:\s*{\s*(?:"\w+"\s*:\s*"(?:[^"\\]|\\/)*"\s*,\s*)*"data"\s*:\s*"\Z', re.ASCII
)
"""The bytes before the data. The final quote opens a string in any JSON, because texts have no unescaped quotes."""
_MOST_BEFORE = 1024
_BACKSLASH = 0x5C


class ShortBody(NamedTuple):
    """`data`: the body with digests instead of long data. `ends`: where the digests end in `data`. `shifts`: the
    offsets of the bytes after each digest; the first is that of the bytes before all digests."""

    data: bytes
    ends: Sequence[int] = ()
    shifts: Sequence[int] = (0,)

    def place(self, at: int) -> int:
        """The position in the body of a position in `data` outside digests."""
        return at + self.shifts[bisect_right(self.ends, at)]


def without_inline_data(body: bytes, shift: int = 0, *, is_answer: bool = False) -> ShortBody:
    """The body without long inline data. `shift`: added to all positions. `is_answer`: use the digests of
    `data_identity`, which takes longer; otherwise the digests depend on the form of the base64."""
    pieces: list[bytes] = []
    ends, shifts = list[int](), [shift]
    done = at = 0  # the end of the last replaced data; the start of the window
    while (stop := at + _WINDOW) <= len(body):
        if body.find(b'"', at, stop) >= 0:
            at = stop
            continue
        start, at = body.rfind(b'"', done, at), body.find(b'"', stop)
        if at < 0:
            break
        if at - start > LONG_DATA and _is_data(body, start, at):
            found = data_identity(body[start : at + 1]) if is_answer else _digest(memoryview(body)[start:at])
            pieces += [body[done:start], found]
            shifts.append(shifts[-1] + at - start - len(found))
            ends.append(at - shifts[-1] + shift)
            done = at
    return ShortBody(b"".join([*pieces, body[done:]]) if pieces else body, ends, shifts)


def _is_data(body: bytes, start: int, end: int) -> bool:
    """Whether inline data starts and ends at these quotes."""
    before = _BEFORE.search(body, max(0, start - _MOST_BEFORE), start + 1)
    return before is not None and body[end - 1] != _BACKSLASH


def data_identity(data: bytes) -> bytes:
    """The identity of inline data: its base64 in the usual alphabet without padding or, if that is long, its digest.
    `data`: a JSON string. The identity has no closing quote."""
    for sign, other, usual in ((b"\\", b"\\/", b"/"), (b"-", b"-", b"+"), (b"_", b"_", b"/")):
        if data.find(sign) >= 0:  # one byte is found much faster than two
            data = data.replace(other, usual)
    data = data.rstrip(b'="')
    return data if len(data) < _DIGESTED else _digest(data)


def _digest(data: bytes | memoryview) -> bytes:
    return b'"#' + xxhash.xxh3_128_hexdigest(data).encode()  # no base64 has a `#`


Part = dict[str, msgspec.Raw]
Span = tuple[int, int]

UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The decoders' errors."""


class Text(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    text: msgspec.Raw


class TextContent(msgspec.Struct, gc=False):
    """The usual Content, with nothing but texts as parts, still as JSON."""

    parts: list[Text]
    role: str | None = None


class Content(msgspec.Struct, gc=False):
    """Any Content. Proto JSON accepts one part instead of a list."""

    role: str | None = None
    parts: list[Part] | Part | None = None

    def each(self) -> list[Part]:
        return as_list(self.parts)


_read_texts = msgspec.json.Decoder(TextContent).decode
_read_content = msgspec.json.Decoder(Content).decode


def content_at(data: bytes | memoryview) -> Content:
    """One Content of any kind. Raises Malformed."""
    try:
        return _read_content(data)
    except UNREAD as error:
        raise Malformed(str(error)) from None


def contents_at(data: bytes, spans: Sequence[Span]) -> list[Content | TextContent]:
    """The Contents at these spans. Raises Malformed."""
    view = memoryview(data)
    found: list[Content | TextContent] = []
    for start, end in spans:
        piece = view[start:end]
        try:
            found.append(_read_texts(piece))
        except UNREAD:
            found.append(content_at(piece))
    return found
