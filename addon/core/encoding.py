"""Content encodings of answers, undone piece by piece. Upstream is asked for none, but may use one all the same.

A gzip or zstd body may hold several members or frames, and `deflate` may come with or without zlib's header: RFC 9110
asks for it, and some servers leave it out. A body that ends before its encoding does was cut off.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import brotli
import zstandard

Decompress = Callable[[bytes], bytes]
"""Takes the next bytes, b"" at the end; gives what they hold. Raises BadEncoding, at the end as well."""

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


class _Body(Protocol):
    """What a library undoes one body with, or one member or frame of it."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Members:
    """One member or frame after the other. `padding` may stand behind each."""

    def __init__(self, name: str, make: Callable[[], _Body], padding: bytes = b"") -> None:
        self._name = name
        self._make = make
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
            out.append(_undone(self._name, self._member.decompress, chunk))
            chunk = self._member.unused_data
        return b"".join(out)


class _Deflate:
    """With or without zlib's header, which its first two bytes tell."""

    def __init__(self) -> None:
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
        out = _undone("deflate", self._body.decompress, chunk) if chunk else b""
        if ends:
            _check_end("deflate", self._body.eof)
        return out


class _Brotli:
    def __init__(self) -> None:
        self._body = brotli.Decompressor()
        self._begun = False

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk:
            _check_end("br", not self._begun or self._body.is_finished())
            return b""
        self._begun = True
        return _undone("br", self._body.process, chunk)


_DECODERS: dict[str, Callable[[], Decompress]] = {
    "gzip": lambda: _Members("gzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), padding=b"\0"),
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": lambda: _Members("zstd", zstandard.ZstdDecompressor().decompressobj),
}
_DECODERS["x-gzip"] = _DECODERS["gzip"]


def _undone(name: str, decompress: Decompress, chunk: bytes) -> bytes:
    try:
        return bytes(decompress(chunk))
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise BadEncoding(f"the body is not {name}: {error}") from None


def _check_end(name: str, has_ended: bool) -> None:
    if not has_ended:
        raise BadEncoding(f"the body is not {name} to its end: it was cut off")
