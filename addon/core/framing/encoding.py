"""Decodes the content encodings gzip and deflate piece by piece. The upstream may use one although none was requested.

A gzip body may hold several members, and `deflate` may have a zlib header or not: RFC 9110 requires it, and some
servers omit it. A body that ends before its encoding does was cut off. A small body may expand to more than fits in
memory, so the output is limited, and nothing is produced beyond the limit.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

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
