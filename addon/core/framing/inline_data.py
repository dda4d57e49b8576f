"""Takes long inline data (images, sounds, documents) out of a body, so that what reads the rest never scans it again.

A digest stands in its place. Clients send the data of an answer back in either alphabet of base64, with or without
padding, with or without escaped slashes, and `identity` is the same for all. Their own data each sends in one form.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

_WINDOW = 2**15
LONG = 2 * _WINDOW
"""Data of this size in bytes is always taken out, because a whole window without a quote lies in it."""

_DIGESTED = _WINDOW // 2
"""From this size on, data is known by its digest. Long data is larger than this also without escapes and padding."""

_BEFORE = re.compile(
    rb'(?<!\\)"inline(?:Data|_data)"\s*:\s*{\s*(?:"\w+"\s*:\s*"(?:[^"\\]|\\/)*"\s*,\s*)*"data"\s*:\s*"\Z', re.ASCII
)
"""What stands before the data. The pattern ends with an opening quote in any JSON: a text has no unescaped quotes."""
_MOST_BEFORE = 1024
_BACKSLASH = 0x5C


class Short(NamedTuple):
    """`data`: the body with digests in place of long data. `ends`: where the digests end in it. `shifts`: how far the
    bytes behind each of them have moved; the first shift is that of the bytes before all digests."""

    data: bytes
    ends: Sequence[int] = ()
    shifts: Sequence[int] = (0,)

    def place(self, at: int) -> int:
        """The position in the body of a position in `data` that is not within a digest."""
        return at + self.shifts[bisect_right(self.ends, at)]


def shortened(body: bytes, shift: int = 0, *, is_answer: bool = False) -> Short:
    """The body without long inline data. `shift`: added to all places. `is_answer`: the digests are those of
    `identity`, which takes longer; otherwise they depend on the form of the base64."""
    pieces: list[bytes] = []
    ends, shifts = list[int](), [shift]
    done = at = 0  # the end of the last data taken out; the window
    while (stop := at + _WINDOW) <= len(body):
        if body.find(b'"', at, stop) >= 0:
            at = stop
            continue
        start, at = body.rfind(b'"', done, at), body.find(b'"', stop)
        if at < 0:
            break
        if at - start > LONG and _is_data(body, start, at):
            found = identity(body[start : at + 1]) if is_answer else _digest(memoryview(body)[start:at])
            pieces += [body[done:start], found]
            shifts.append(shifts[-1] + at - start - len(found))
            ends.append(at - shifts[-1] + shift)
            done = at
    return Short(b"".join([*pieces, body[done:]]) if pieces else body, ends, shifts)


def _is_data(body: bytes, start: int, end: int) -> bool:
    """Whether inline data is between these quotes, and ends there."""
    before = _BEFORE.search(body, max(0, start - _MOST_BEFORE), start + 1)
    return before is not None and body[end - 1] != _BACKSLASH


def identity(data: bytes) -> bytes:
    """What inline data is known by: its base64 in the usual alphabet without padding or, if that is long, a digest of
    it. `data`: a JSON string. The identity of one has no closing quote."""
    for sign, other, usual in ((b"\\", b"\\/", b"/"), (b"-", b"-", b"+"), (b"_", b"_", b"/")):
        if data.find(sign) >= 0:  # one byte is found much faster than two
            data = data.replace(other, usual)
    data = data.rstrip(b'="')
    return data if len(data) < _DIGESTED else _digest(data)


def _digest(data: bytes | memoryview) -> bytes:
    return b'"#' + xxhash.xxh3_128_hexdigest(data).encode()  # no base64 has a `#`
