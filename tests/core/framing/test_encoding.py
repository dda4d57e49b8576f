"""Decoding of content encodings, piece by piece."""

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from addon.core.framing import streams
from addon.core.framing.streams import BadEncoding, TooLong, decompressor

DATA = b"data: {}\r\n\r\n" * 50

type Pack = Callable[[bytes], bytes]


def raw(data: bytes) -> bytes:
    return data


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def stored_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(level=0, wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def twice(data: bytes) -> bytes:
    """Each half compressed separately."""
    return gzip.compress(data[:100]) + gzip.compress(data[100:])


def undone(name: str, *pieces: bytes, most: int = 2**40) -> bytes:
    """What a decoder makes of these pieces and the end."""
    undo = decompressor(name, most)
    assert undo is not None
    return b"".join(undo(piece) for piece in [*pieces, b""])


PACKED: list[tuple[str, Pack]] = [
    ("", raw),
    ("identity", raw),
    ("gzip", gzip.compress),
    (" GZip ", gzip.compress),
    ("x-gzip", gzip.compress),
    ("gzip", twice),
    ("gzip", lambda data: gzip.compress(data) + bytes(7)),
    ("gzip", lambda data: gzip.compress(b"") + bytes(3) + gzip.compress(data)),
    ("identity, gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", bare_deflate),
    ("deflate", stored_deflate),
]


@pytest.mark.parametrize(("name", "pack"), PACKED)
def test_the_output_does_not_depend_on_the_cuts(name: str, pack: Pack) -> None:
    packed = pack(DATA)
    for size in (1, 2, 10, len(packed)):
        assert undone(name, *(packed[n : n + size] for n in range(0, len(packed), size))) == DATA
    for cut in range(len(packed) + 1):
        assert undone(name, *filter(None, (packed[:cut], packed[cut:]))) == DATA


def test_output_is_decoded_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LARGEST", 7)
    for name, pack in PACKED:
        assert undone(name, pack(DATA)) == DATA


OTHERS = ["compress", "br", "zstd", "unknown", "gzip, unknown", "gzip, gzip", "deflate, gzip"]


@pytest.mark.parametrize("name", OTHERS)
def test_another_encoding_has_no_decoder(name: str) -> None:
    assert decompressor(name) is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("gzip", b"\x07not packed at all, as anybody can see\xff" * 20),
        ("deflate", b"\x07not packed at all, as anybody can see\xff" * 20),
        ("gzip", gzip.compress(DATA) + b"and more"),
        ("deflate", zlib.compress(DATA) + b"and more"),
    ],
    ids=["gzip: text", "deflate: text", "gzip: more", "deflate: more"],  # gzip's bytes have the time of collection
)
@pytest.mark.parametrize("size", [1, 10_000])
def test_bytes_that_are_not_what_the_header_says_are_refused(name: str, data: bytes, size: int) -> None:
    with pytest.raises(BadEncoding, match=r"the body is not|something follows"):
        undone(name, *(data[n : n + size] for n in range(0, len(data), size)))


@pytest.mark.parametrize(
    ("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", bare_deflate)]
)
def test_a_body_that_was_cut_off_is_refused_at_its_end(name: str, pack: Pack) -> None:
    packed = pack(DATA)
    for cut in range(1, len(packed)):
        with pytest.raises(BadEncoding, match=r"body was cut off"):
            undone(name, packed[:cut])
        if name == "gzip":
            with pytest.raises(BadEncoding, match=r"body was cut off"):
                undone(name, packed + packed[:cut])


@pytest.mark.parametrize("name", ["gzip", "deflate", "identity"])
def test_an_empty_body_is_valid_in_any_encoding(name: str) -> None:
    assert undone(name) == b""


@pytest.mark.parametrize(("name", "pack"), PACKED[2:])
@pytest.mark.parametrize("size", [10_000, 10**9])
def test_a_bomb_takes_neither_memory_nor_time(name: str, pack: Pack, size: int) -> None:
    """A few bytes may expand to more than fits in memory."""
    most = 1024 * 1024
    bomb = pack(bytes(16 * most))
    tracemalloc.start()
    begun = time.thread_time()
    try:
        with pytest.raises(TooLong, match="more than 1048576 bytes"):
            undone(name, *(bomb[n : n + size] for n in range(0, len(bomb), size)), most=most)
        assert time.thread_time() - begun < 1
        assert tracemalloc.get_traced_memory()[1] < 8 * most + len(bomb)
    finally:
        tracemalloc.stop()


def test_the_time_for_many_members_grows_with_their_number() -> None:
    body = gzip.compress(b"") * 150_000
    begun = time.thread_time()
    assert undone("gzip", body) == b""
    assert time.thread_time() - begun < 5  # ten, if the rest of the body is copied for each


@pytest.mark.parametrize(("name", "pack"), PACKED)
def test_output_up_to_the_bound_is_complete(name: str, pack: Pack) -> None:
    assert undone(name, pack(DATA), most=len(DATA)) == DATA
    with pytest.raises(TooLong):
        undone(name, pack(DATA), most=len(DATA) - 1)
