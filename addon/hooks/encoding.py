"""Content encodings of streams, undone piece by piece. Upstream is asked for none, but may use one all the same."""

import zlib
from collections.abc import Callable

import brotli
import zstandard

Decompress = Callable[[bytes], bytes]
"""Takes the next bytes, b"" at the end; gives what they hold."""


def decompressor(encoding: str) -> Decompress | None:
    """None for an encoding that is not known."""
    match encoding.strip().lower():
        case "" | "identity":
            return lambda chunk: chunk
        case "gzip" | "x-gzip":
            return _zlib(zlib.decompressobj(16 + zlib.MAX_WBITS))
        case "deflate":
            return _zlib(zlib.decompressobj())
        case "br":
            unbrotli = brotli.Decompressor()
            return lambda chunk: unbrotli.process(chunk) if chunk else b""
        case "zstd":
            unzstd = zstandard.ZstdDecompressor().decompressobj()
            return lambda chunk: unzstd.decompress(chunk) if chunk else b""
    return None


def _zlib(unzip: "zlib._Decompress") -> Decompress:
    return lambda chunk: unzip.decompress(chunk) if chunk else unzip.flush()
