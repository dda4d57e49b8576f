"""The SSE decoder: it loses nothing, finds the same events however the bytes are cut, and follows the SSE rules for
data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.streams import SseDecoder, SseEvent, sse_event
from tests.recorded import at_least, exchanges


def decode(chunks: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.flush()


def one_by_one(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


# body → (raw, data) of each event
TABLE: dict[str, tuple[bytes, list[tuple[bytes, bytes | None]]]] = {
    "nothing": (b"", []),
    "Gemini's own form": (
        b'data: {"a":1}\r\n\r\ndata: {"b":2}\r\n\r\n',
        [(b'data: {"a":1}\r\n\r\n', b'{"a":1}'), (b'data: {"b":2}\r\n\r\n', b'{"b":2}')],
    ),
    "LF": (b"data: a\n\ndata: b\n\n", [(b"data: a\n\n", b"a"), (b"data: b\n\n", b"b")]),
    "CR": (b"data: a\r\rdata: b\r\r", [(b"data: a\r\r", b"a"), (b"data: b\r\r", b"b")]),
    "CR then CRLF": (b"data: a\r\r\ndata: b\n\n", [(b"data: a\r\r\n", b"a"), (b"data: b\n\n", b"b")]),
    "LF then CRLF": (b"data: a\n\r\ndata: b\n\n", [(b"data: a\n\r\n", b"a"), (b"data: b\n\n", b"b")]),
    "LF then CR": (b"data: a\n\rdata: b\n\n", [(b"data: a\n\r", b"a"), (b"data: b\n\n", b"b")]),
    "CRLF then LF": (b"data: a\r\n\ndata: b\n\n", [(b"data: a\r\n\n", b"a"), (b"data: b\n\n", b"b")]),
    "CRLF then CR": (b"data: a\r\n\rdata: b\n\n", [(b"data: a\r\n\r", b"a"), (b"data: b\n\n", b"b")]),
    "a last event without its blank line": (
        b"data: a\r\n\r\ndata: b\r\n",
        [(b"data: a\r\n\r\n", b"a"), (b"data: b\r\n", b"b")],
    ),
    "a last event without its line end": (b"data: a", [(b"data: a", b"a")]),
    "a last event ended by a bare CR": (b"data: a\r\n\r", [(b"data: a\r\n\r", b"a")]),
    "several data lines": (
        b"data: a\r\ndata: b\r\n\r\ndata: c\ndata:\ndata\ndata: d\n\n",
        [(b"data: a\r\ndata: b\r\n\r\n", b"a\nb"), (b"data: c\ndata:\ndata\ndata: d\n\n", b"c\n\n\nd")],
    ),
    "a CR inside a line ended by LF": (b"data: a\rdata: b\n\n", [(b"data: a\rdata: b\n\n", b"a\nb")]),
    "one space is not data, the second is": (
        b"data:a\n\ndata:  b\n\n",
        [(b"data:a\n\n", b"a"), (b"data:  b\n\n", b" b")],
    ),
    "empty data": (b"data: \n\ndata:\n\n", [(b"data: \n\n", b""), (b"data:\n\n", b"")]),
    "comments": (
        b": keep-alive\n\n:\ndata: a\n: more\n\n",
        [(b": keep-alive\n\n", None), (b":\ndata: a\n: more\n\n", b"a")],
    ),
    "other fields": (
        b"event: done\nid: 7\nretry: 10\ndata: [DONE]\n\nevent: end\n\n",
        [(b"event: done\nid: 7\nretry: 10\ndata: [DONE]\n\n", b"[DONE]"), (b"event: end\n\n", None)],
    ),
    "a field that only begins like data": (b"data2: a\ndatabase\n\n", [(b"data2: a\ndatabase\n\n", None)]),
    "a stray blank line goes with the next event": (
        b"\r\ndata: a\r\n\r\n\r\ndata: b\r\n\r\n",
        [(b"\r\ndata: a\r\n\r\n", b"a"), (b"\r\ndata: b\r\n\r\n", b"b")],
    ),
    "stray blank lines": (b"\n\n\ndata: a\n\n\n", [(b"\n\n", None), (b"\ndata: a\n\n", b"a"), (b"\n", None)]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\r\n\r\n", [(b"\xef\xbb\xbfdata: a\r\n\r\n", b"a")]),
    "UTF-8": (
        'data: {"t":"žluťoučký 🐎"}\r\n\r\n'.encode(),
        [('data: {"t":"žluťoučký 🐎"}\r\n\r\n'.encode(), '{"t":"žluťoučký 🐎"}'.encode())],
    ),
    "line separators of Unicode end no line": (
        "data: a\u2028b\u0085c\x0bd\x0ce\n\n".encode(),
        [("data: a\u2028b\u0085c\x0bd\x0ce\n\n".encode(), "a\u2028b\u0085c\x0bd\x0ce".encode())],
    ),
    "a bare error object": (
        b'{\n  "error": {\n    "code": 400\n  }\n}\n',
        [(b'{\n  "error": {\n    "code": 400\n  }\n}\n', None)],
    ),
    "bytes that are no UTF-8": (b"\xff\x00\ndata: \xfe\n\n", [(b"\xff\x00\ndata: \xfe\n\n", b"\xfe")]),
}


@pytest.mark.parametrize("name", TABLE)
def test_events_follow_the_sse_rules_wherever_the_bytes_are_cut(name: str) -> None:
    body, expected = TABLE[name]
    events = [SseEvent(raw, data) for raw, data in expected]
    assert decode([body]) == events
    assert decode(one_by_one(body)) == events
    for cut in range(len(body) + 1):
        assert decode([body[:cut], b"", body[cut:]]) == events, cut


@given(
    st.lists(
        st.sampled_from(
            [b"data: ", b"data:", b"data", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b": c", b'{"a":1}', b"\xef\xbb\xbf"]
        )
        | st.binary(max_size=3)
    )
)
def test_any_bytes_rejoin_and_decode_the_same_however_they_are_cut(chunks: list[bytes]) -> None:
    body = b"".join(chunks)
    whole = decode([body])
    assert b"".join(event.raw for event in whole) == body
    assert decode(chunks) == whole
    assert decode(one_by_one(body)) == whole


@pytest.mark.parametrize(
    ("chunk", "ready"),
    [
        (b"data: a\r\n\r\n", 1),
        (b"data: a\n\n", 1),
        (b"data: a\r\n\r", 0),  # an LF may follow, and would be the event's
        (b"data: a\r\n", 0),
        (b"data: a\r\n\r\ndata: b", 1),
        (b"data: a\r\r", 0),
        (b"data: a\r\rd", 1),
    ],
)
def test_an_event_is_returned_with_the_chunk_that_decides_its_end(chunk: bytes, ready: int) -> None:
    decoder = SseDecoder()
    assert len(decoder.feed(chunk)) == ready


def test_nothing_is_left_after_a_flush() -> None:
    decoder = SseDecoder()
    decoder.feed(b"data: a")
    assert len(decoder.flush()) == 1
    assert decoder.flush() == []
    assert decoder.feed(b"data: b\n\n") == [SseEvent(b"data: b\n\n", b"b")]


def test_a_long_event_in_small_pieces_is_searched_once() -> None:
    body = b"data: " + b"x" * 2_000_000 + b"\r\n\r\n"
    decoder = SseDecoder()
    events = [event for i in range(0, len(body), 100) for event in decoder.feed(body[i : i + 100])]
    assert [event.raw for event in events] == [body]


def test_encode_writes_the_framing_that_every_client_parses() -> None:
    assert sse_event(b'{"a":"b"}') == b'data: {"a":"b"}\r\n\r\n'
    assert decode([sse_event(b"{}")])[0].data == b"{}"


@pytest.mark.parametrize("document", [b"{\n}", b"{\r}", b"{}\r\n"])
def test_encode_refuses_more_than_one_line(document: bytes) -> None:
    with pytest.raises(ValueError, match="one line"):
        sse_event(document)


def test_every_recorded_stream_decodes_to_json_and_rejoins() -> None:
    streams = 0
    for exchange in exchanges():
        if exchange["framing"] != "sse" or exchange["api"] not in ("devapi", "vertex", "codeassist"):
            continue
        body = exchange["response_body"].encode()
        events = decode([body])
        assert b"".join(event.raw for event in events) == body
        assert decode([body[i : i + 7] for i in range(0, len(body), 7)]) == events
        for event in events:
            if event.data is not None:
                assert isinstance(json.loads(event.data), dict), exchange["id"]
        streams += any(event.data for event in events)
    assert streams > at_least(8, 300)
