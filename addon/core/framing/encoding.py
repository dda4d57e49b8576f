"""Decodes the content encodings of answers piece by piece. Upstream is asked for none, but may use one anyway.

A gzip or zstd body may hold several members or frames, and `deflate` may have a zlib header or not: RFC 9110 requires
it, and some servers omit it. A body that ends before its encoding does was cut off. A small body may expand to more
than fits in memory, so the output is bounded, and nothing is produced beyond the bound.
"""

import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import brotli
import zstandard

Decompress = Callable[[bytes], bytes]
"""Takes the next bytes, b"" at the end. Returns the decoded bytes. Raises BadEncoding, also at the end."""

_MOST = 5
"""The maximum number of nested encodings. More are an attack."""

_SLICE = 256
"""How many bytes zstd gets at once. It has no output limit; this many bytes expand to little more than a megabyte."""

_LARGEST = 2**31 - 1
"""The highest output limit that the libraries accept."""

_WINDOW = 8 * 1024 * 1024
"""The largest window of a zstd frame in bytes. RFC 8878 recommends no more."""


class BadEncoding(ValueError):
    """The bytes are not what their content encoding says."""


class TooLong(BadEncoding):
    """The decoded body is longer than allowed."""


def decompressor(encodings: str, most: int = sys.maxsize) -> Decompress | None:
    """The decoder for a Content-Encoding header, which lists names in the order in which they were applied. None if a
    name is unknown. The decoder raises TooLong after more than `most` bytes, even without any encoding."""
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > _MOST or any(name not in _DECODERS for name in names):
        return None
    if not names:
        return _OutputLimit(most).take
    steps = [_DECODERS[name](most) for name in reversed(names)]
    return steps[0] if len(steps) == 1 else _Chain(steps)


class _OutputLimit:
    """The rest of the output limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rest = most

    def take(self, data: bytes) -> bytes:
        self.rest -= len(data)
        if self.rest < 0:
            raise TooLong(f"it has more than {self._most} bytes")
        return data


class _Chain:
    """Decodes one encoding after the other."""

    def __init__(self, steps: Sequence[Decompress]) -> None:
        self._steps = steps

    def __call__(self, chunk: bytes) -> bytes:
        ends = not chunk
        for step in self._steps:
            chunk = (step(chunk) if chunk else b"") + (step(b"") if ends else b"")
        return chunk


class _Decoder(Protocol):
    """A library's decoder for one body, or for one member or frame of a body."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, most: int, /) -> bytes:
        """Decode to about `most` bytes at most. If that is not all, the rest of the data is lost."""
        ...


class _Zstd:
    """A decoder for one zstd frame, with bounded output."""

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
    """Decodes one member or frame after the other. `padding` may follow each."""

    def __init__(self, name: str, make: Callable[[], _Decoder], most: int, padding: bytes = b"") -> None:
        self._name = name
        self._make = make
        self._limit = _OutputLimit(most)
        self._padding = padding
        self._member: _Decoder | None = None  # the current member

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            _check_end(self._name, self._member is None or self._member.eof)
        out: list[bytes] = []
        while chunk:
            if self._member is None or self._member.eof:
                if self._member is not None and not (chunk := chunk.lstrip(self._padding)):
                    break
                self._member = self._make()
            out.append(self._limit.take(_decode(self._name, self._member.decompress, chunk, self._limit.rest + 1)))
            chunk = self._member.unused_data
        return b"".join(out)


class _Deflate:
    """Decodes deflate with or without zlib's header, which the first two bytes show."""

    def __init__(self, most: int) -> None:
        self._limit = _OutputLimit(most)
        self._head = b""
        self._body: _Decoder | None = None

    def __call__(self, chunk: bytes) -> bytes:
        ends = not chunk
        if self._body is None:
            self._head += chunk
            if len(self._head) < 2 and not (ends and self._head):
                return b""
            is_zlib = len(self._head) > 1 and self._head[0] & 15 == 8 and int.from_bytes(self._head[:2]) % 31 == 0
            self._body = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
            chunk = self._head
        out = _decode("deflate", self._body.decompress, chunk, self._limit.rest + 1) if chunk else b""
        if ends:
            _check_end("deflate", self._body.eof)
        return self._limit.take(out)


class _Brotli:
    def __init__(self, most: int) -> None:
        self._limit = _OutputLimit(most)
        self._body = brotli.Decompressor()
        self._has_begun = False

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            _check_end("br", not self._has_begun or self._body.is_finished())
            return b""
        self._has_begun = True
        return self._limit.take(_decode("br", self._process, chunk, self._limit.rest + 1))

    def _process(self, chunk: bytes, most: int) -> bytes:
        return bytes(self._body.process(chunk, output_buffer_limit=most))


_DECODERS: dict[str, Callable[[int], Decompress]] = {
    "gzip": lambda most: _Members("gzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), most, padding=b"\0"),
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": lambda most: _Members("zstd", _Zstd, most),
}
_DECODERS["x-gzip"] = _DECODERS["gzip"]


def _decode(name: str, decompress: Callable[[bytes, int], bytes], chunk: bytes, most: int) -> bytes:
    try:
        return bytes(decompress(chunk, min(most, _LARGEST)))
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise BadEncoding(f"the body is not {name}: {error}") from None


def _check_end(name: str, has_ended: bool) -> None:
    if not has_ended:
        raise BadEncoding(f"the {name} body was cut off")
