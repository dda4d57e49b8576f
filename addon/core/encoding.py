"""Content encodings of answers, undone piece by piece. Upstream is asked for none, but may use one all the same.

A gzip or zstd body may hold several members or frames, and `deflate` may come with or without zlib's header: RFC 9110
asks for it, and some servers leave it out. A body that ends before its encoding does was cut off. However little of a
body comes, it may hold more than there is memory for: what comes out is bounded, and never made beyond its bound.
"""

import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import brotli
import zstandard

Decompress = Callable[[bytes], bytes]
"""Takes the next bytes, b"" at the end; gives what they hold. Raises BadEncoding, at the end as well."""

_MOST = 5
"""Encodings on top of each other. More are an attack."""

_SLICE = 256
"""Bytes that are given to zstd at once, which knows no bound of its own: not many more than a megabyte come of them."""

_LARGEST = 2**31 - 1
"""The highest bound that the libraries take."""

_WINDOW = 8 * 1024 * 1024
"""Bytes that a zstd frame may want to be kept: RFC 8878 asks for no more."""


class BadEncoding(ValueError):
    """The bytes are not what their content encoding says."""


class TooLong(BadEncoding):
    """There is more than may be."""


def decompressor(encodings: str, most: int = sys.maxsize) -> Decompress | None:
    """For the value of a Content-Encoding header: names with commas, in the order in which they were applied. None if
    one of them is not known. Raises TooLong when more than `most` bytes have come out, without any encoding too."""
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > _MOST or any(name not in _DECODERS for name in names):
        return None
    if not names:
        return _Room(most).taken
    steps = [_DECODERS[name](most) for name in reversed(names)]
    return steps[0] if len(steps) == 1 else _Chain(steps)


class _Room:
    """What may still come out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.left = most

    def taken(self, data: bytes) -> bytes:
        self.left -= len(data)
        if self.left < 0:
            raise TooLong(f"it has more than {self._most} bytes")
        return data


class _Chain:
    """Undoes one encoding after the other."""

    def __init__(self, steps: Sequence[Decompress]) -> None:
        self._steps = steps

    def __call__(self, chunk: bytes) -> bytes:
        ends = not chunk
        for step in self._steps:
            chunk = (step(chunk) if chunk else b"") + (step(b"") if ends else b"")
        return chunk


class _Body(Protocol):
    """What a library undoes one body with, or one member or frame of it."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, most: int, /) -> bytes:
        """At most, or not much more than, so many bytes; what is left of the data then is lost."""
        ...


class _Zstd:
    """A frame of zstd, bounded."""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        self.unused_data = b""

    @property
    def eof(self) -> bool:
        return self._frame.eof

    def decompress(self, data: bytes, most: int, /) -> bytes:
        out = bytearray()
        for start in range(0, len(data), _SLICE):
            out += self._frame.decompress(data[start : start + _SLICE])
            if self._frame.eof:
                self.unused_data = self._frame.unused_data + data[start + _SLICE :]
                break
            if len(out) > most:
                break
        return bytes(out)


class _Members:
    """One member or frame after the other. `padding` may stand behind each."""

    def __init__(self, name: str, make: Callable[[], _Body], most: int, padding: bytes = b"") -> None:
        self._name = name
        self._make = make
        self._room = _Room(most)
        self._padding = padding
        self._member: _Body | None = None  # that has begun

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            _check_end(self._name, self._member is None or self._member.eof)
        out: list[bytes] = []
        while chunk:
            if self._member is None or self._member.eof:
                if self._member is not None and not (chunk := chunk.lstrip(self._padding)):
                    break
                self._member = self._make()
            out.append(self._room.taken(_undone(self._name, self._member.decompress, chunk, self._room.left + 1)))
            chunk = self._member.unused_data
        return b"".join(out)


class _Deflate:
    """With or without zlib's header, which its first two bytes tell."""

    def __init__(self, most: int) -> None:
        self._room = _Room(most)
        self._head = b""
        self._body: _Body | None = None

    def __call__(self, chunk: bytes) -> bytes:
        ends = not chunk
        if self._body is None:
            self._head += chunk
            if len(self._head) < 2 and not (ends and self._head):
                return b""
            is_zlib = len(self._head) > 1 and self._head[0] & 15 == 8 and int.from_bytes(self._head[:2]) % 31 == 0
            self._body = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
            chunk = self._head
        out = _undone("deflate", self._body.decompress, chunk, self._room.left + 1) if chunk else b""
        if ends:
            _check_end("deflate", self._body.eof)
        return self._room.taken(out)


class _Brotli:
    def __init__(self, most: int) -> None:
        self._room = _Room(most)
        self._body = brotli.Decompressor()
        self._begun = False

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            _check_end("br", not self._begun or self._body.is_finished())
            return b""
        self._begun = True
        return self._room.taken(_undone("br", self._process, chunk, self._room.left + 1))

    def _process(self, chunk: bytes, most: int) -> bytes:
        return bytes(self._body.process(chunk, output_buffer_limit=most))


_DECODERS: dict[str, Callable[[int], Decompress]] = {
    "gzip": lambda most: _Members("gzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), most, padding=b"\0"),
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": lambda most: _Members("zstd", _Zstd, most),
}
_DECODERS["x-gzip"] = _DECODERS["gzip"]


def _undone(name: str, decompress: Callable[[bytes, int], bytes], chunk: bytes, most: int) -> bytes:
    try:
        return bytes(decompress(chunk, min(most, _LARGEST)))
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise BadEncoding(f"the body is not {name}: {error}") from None


def _check_end(name: str, has_ended: bool) -> None:
    if not has_ended:
        raise BadEncoding(f"the body is not {name} to its end: it was cut off")
