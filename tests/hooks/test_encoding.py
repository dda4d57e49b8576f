"""Decompression piece by piece."""

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from addon.hooks.encoding import decompressor

DATA = b"data: {}\r\n\r\n" * 50


def raw(data: bytes) -> bytes:
    return data


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("", raw),
        ("identity", raw),
        ("gzip", gzip.compress),
        (" GZip ", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", brotli.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
)
def test_the_same_comes_out_wherever_it_is_cut(name: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(DATA)
    for cut in (1, 2, 10, len(packed)):
        undo = decompressor(name)
        assert undo is not None
        pieces = [packed[n : n + cut] for n in range(0, len(packed), cut)]
        assert b"".join(undo(piece) for piece in [*pieces, b""]) == DATA


@pytest.mark.parametrize("name", ["compress", "gzip, br", "unknown"])
def test_what_is_not_known_is_none(name: str) -> None:
    assert decompressor(name) is None
