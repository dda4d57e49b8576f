"""Decoding of content encodings, piece by piece."""

import functools
import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from addon.core.framing.encoding import BadEncoding, TooLong, decompressor

DATA = b"data: {}\r\n\r\n" * 50

zstd = zstandard.ZstdCompressor().compress
quick_brotli = functools.partial(brotli.compress, quality=4)


def raw(data: bytes) -> bytes:
    return data


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def stored_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(level=0, wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def twice(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Each half compressed separately."""
    return lambda data: pack(data[:100]) + pack(data[100:])


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("", raw),
        ("identity", raw),
        ("gzip", gzip.compress),
        (" GZip ", gzip.compress),
        ("x-gzip", gzip.compress),
        ("gzip", twice(gzip.compress)),
        ("gzip", lambda data: gzip.compress(data) + bytes(7)),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("deflate", stored_deflate),
        ("br", brotli.compress),
        ("zstd", zstd),
        ("zstd", twice(zstd)),
        ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
        ("identity, gzip", gzip.compress),
    ],
)
def test_the_output_does_not_depend_on_the_cuts(name: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(DATA)
    for cut in (1, 2, 10, len(packed)):
        undo = decompressor(name)
        assert undo is not None
        pieces = [packed[n : n + cut] for n in range(0, len(packed), cut)]
        assert b"".join(undo(piece) for piece in [*pieces, b""]) == DATA


@pytest.mark.parametrize("name", ["compress", "gzip, unknown", "unknown", "gzip,gzip,gzip,gzip,gzip,gzip"])
def test_an_unknown_encoding_has_no_decoder(name: str) -> None:
    assert decompressor(name) is None


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd", "br, gzip"])
def test_bytes_that_are_not_what_the_header_says_are_refused(name: str) -> None:
    undo = decompressor(name)
    assert undo is not None
    with pytest.raises(BadEncoding, match="the body is not"):
        undo(b"\x07not packed at all, as anybody can see\xff" * 20)


@pytest.mark.parametrize("cut", [1, 2, 10, -9, -1])
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("gzip", lambda data: gzip.compress(data) + gzip.compress(data)[:-9]),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("br", brotli.compress),
        ("zstd", zstd),
        ("gzip, br", lambda data: brotli.compress(gzip.compress(data)[:-9])),
    ],
)
def test_a_body_that_was_cut_off_is_refused_at_its_end(name: str, pack: Callable[[bytes], bytes], cut: int) -> None:
    undo = decompressor(name)
    assert undo is not None
    with pytest.raises(BadEncoding, match=r"body was cut off|the body is not"):
        undo(pack(DATA)[:cut]) + undo(b"")


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd", "br, gzip", "identity"])
def test_an_empty_body_is_valid_in_any_encoding(name: str) -> None:
    undo = decompressor(name)
    assert undo is not None
    assert undo(b"") == b""


def test_only_another_member_may_follow_a_member() -> None:
    undo = decompressor("gzip")
    assert undo is not None
    with pytest.raises(BadEncoding):
        undo(gzip.compress(DATA) + b"and more")


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("", raw),
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", quick_brotli),
        ("zstd", zstd),
        ("gzip, br", lambda data: quick_brotli(gzip.compress(data))),
        ("br, gzip, zstd", lambda data: zstd(gzip.compress(quick_brotli(data)))),
    ],
)
def test_the_output_is_bounded_and_nothing_beyond_the_bound_is_produced(
    name: str, pack: Callable[[bytes], bytes]
) -> None:
    """A few bytes may expand to more than fits in memory."""
    size, most = 24 * 1024 * 1024, 1024 * 1024
    bomb = pack(bytes(size))
    undo = decompressor(name, most)
    assert undo is not None
    tracemalloc.start()
    try:
        with pytest.raises(TooLong, match="more than 1048576 bytes"):
            undo(bomb)
        assert tracemalloc.get_traced_memory()[1] < 16 * most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "pack"), [("", raw), ("gzip", gzip.compress), ("br", brotli.compress), ("zstd", zstd)]
)
def test_output_up_to_the_bound_is_complete(name: str, pack: Callable[[bytes], bytes]) -> None:
    undo = decompressor(name, len(DATA))
    assert undo is not None
    assert undo(pack(DATA)) + undo(b"") == DATA
    undo = decompressor(name, len(DATA) - 1)
    assert undo is not None
    with pytest.raises(TooLong):
        undo(pack(DATA))
