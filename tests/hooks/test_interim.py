"""A chunked body keeps its content, in fewer pieces."""

from collections.abc import Callable
from typing import Any

import h11
import pytest
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer

from addon.hooks.interim import ChunkedBody

EVENTS = [b"data: one\r\n\r\n", b"data: two\r\n\r\n", b"x" * 700, b"\r\n"]
WHOLE = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS)
BODIES = {
    "whole": WHOLE + b"0\r\n\r\n",
    "followed": WHOLE + b"0\r\n\r\nHTTP/1.1 200 OK\r\n",
    "odd sizes": b"003\r\none\r\n00A\r\n0123456789\r\n" + b"%021x\r\none\r\n" % 3,
    "an end among chunks": WHOLE + b"000\r\n\r\n" + WHOLE,
    "extensions": b'3;a="b"\r\none\r\n0\r\n\r\n',
    "trailers": WHOLE + b"0\r\nx-sum: 1\r\n\r\n",
    "cut off": WHOLE[:-9],
    "no length": WHOLE + b"none\r\n",
    "no end": b"3\r\none!\r\n" + WHOLE,
    "no length among chunks": b"1\r\n1\r\n" + b"+1\r\n2\r\n" + WHOLE,
    "odd end": WHOLE + b"3\r\none\n\n",
    "bad trailers": WHOLE + b"0\r\nno field\r\n\r\n",
}


def read(make: Callable[[Any], Any], body: bytes, size: int) -> tuple[list[list[bytes]], str, bytes]:
    """The pieces of data of each read of `size` bytes, how the body ends, and what is left behind it, as mitmproxy's
    `read_body` has them."""
    reader, buffer = make(ChunkedReader()), ReceiveBuffer()
    reads: list[list[bytes]] = []
    for at in range(0, len(body), size):
        buffer += body[at : at + size]
        reads.append(pieces := [])
        try:
            while (event := reader(buffer)) is not None:
                if isinstance(event, h11.EndOfMessage):
                    return reads, "end", bytes(buffer) + body[at + size :]
                pieces.append(bytes(event.data))
        except h11.ProtocolError as error:
            return reads, str(error), b""
    with pytest.raises(h11.ProtocolError) as cut_off:
        reader.read_eof()
    return reads, str(cut_off.value), b""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 300, 65_535])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_chunked_body_is_read_as_mitmproxy_reads_it(body: bytes, size: int) -> None:
    expected, end, rest = read(lambda reader: reader, body, size)
    reads, *others = read(ChunkedBody, body, size)
    assert others == [end, rest]
    assert reads == [[b"".join(pieces)] if pieces else [] for pieces in expected]


def test_trailers_are_dropped() -> None:
    reader, buffer = ChunkedBody(ChunkedReader()), ReceiveBuffer()
    buffer += b"0\r\nx-sum: 1\r\n\r\n"
    assert reader(buffer).headers == h11.EndOfMessage().headers
