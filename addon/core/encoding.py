"""Content encodings of answers, undone piece by piece. Upstream is asked for none, but may use one all the same.

A gzip or zstd body may hold several members or frames, and `deflate` may come with or without zlib's header: RFC 9110
asks for it, and some servers leave it out.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import NoReturn

import brotli
import zstandard

Decompress = Callable[[bytes], bytes]
"""Takes the next bytes, b"" at the end; gives what they hold. Raises BadEncoding."""

_MOST = 5
"""Encodings on top of each other. More are an attack."""


class BadEncoding(ValueError):
    """The bytes are not what their content encoding says."""


def decompressor(encodings: str) -> Decompress | None:
    """For the value of a Content-Encoding header: names with commas, in the order in which they were applied. None if
    one of them is not known."""
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > _MOST or any(name not in _DECODERS for name in names):
        return None
    steps = [_DECODERS[name]() for name in reversed(names)]
    return steps[0] if len(steps) == 1 else _Chain(steps)


class _Chain:
    """Undoes one encoding after the other; without any the bytes are as they came."""

    def __init__(self, steps: Sequence[Decompress]) -> None:
        self._steps = steps

    def __call__(self, chunk: bytes) -> bytes:
        ends = not chunk
        for step in self._steps:
            chunk = (step(chunk) if chunk else b"") + (step(b"") if ends else b"")
        return chunk


class _Gzip:
    """One member after the other. Zeros behind a member are padding."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            return b""
        out: list[bytes] = []
        while chunk:
            if self._member.eof:
                if not (chunk := chunk.lstrip(b"\0")):
                    break
                self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            out.append(_unzipped(self._member, chunk))
            chunk = self._member.unused_data
        return b"".join(out)


class _Deflate:
    """With or without zlib's header, which its first two bytes tell."""

    def __init__(self) -> None:
        self._head = b""
        self._body: zlib._Decompress | None = None

    def __call__(self, chunk: bytes) -> bytes:
        if self._body is None:
            self._head += chunk
            if len(self._head) < 2 and chunk:
                return b""
            is_zlib = len(self._head) > 1 and self._head[0] & 15 == 8 and int.from_bytes(self._head[:2]) % 31 == 0
            self._body = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
            chunk = self._head
        return _unzipped(self._body, chunk) if chunk else b""


class _Brotli:
    def __init__(self) -> None:
        self._body = brotli.Decompressor()

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            return b""
        try:
            return bytes(self._body.process(chunk))
        except brotli.error as error:
            _refuse("br", error)


class _Zstd:
    def __init__(self) -> None:
        self._frames = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            return b""
        try:
            return self._frames.decompress(chunk)
        except zstandard.ZstdError as error:
            _refuse("zstd", error)


_DECODERS: dict[str, Callable[[], Decompress]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}


def _unzipped(body: "zlib._Decompress", chunk: bytes) -> bytes:
    try:
        return body.decompress(chunk)
    except zlib.error as error:
        _refuse("gzip or deflate", error)


def _refuse(name: str, error: Exception) -> NoReturn:
    raise BadEncoding(f"the body is not {name}: {error}") from None
