"""The array decoder: it loses nothing, and finds the same elements however the bytes are cut, with any strings."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.streams import CLOSE, OPEN, SEPARATOR, ArrayDecoder, ArrayItem
from tests.recorded import at_least, exchanges


def decode(chunks: list[bytes]) -> list[ArrayItem]:
    """All items. Adjacent items without data are joined, because they pass in the pieces in which they arrive."""
    decoder = ArrayDecoder()
    items = [item for chunk in chunks for item in decoder.feed(chunk)] + decoder.flush()
    joined: list[ArrayItem] = []
    for empty, run in itertools.groupby(items, lambda item: item.data is None):
        if empty:
            raw = b"".join(item.raw for item in run)
            joined.append(ArrayItem(raw, raw, None))
        else:
            joined.extend(run)
    return joined


def one_by_one(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


# body → (prefix, data) of each item
TABLE: dict[str, tuple[bytes, list[tuple[bytes, bytes | None]]]] = {
    "nothing": (b"", []),
    "as the service sends it": (
        b'[{\n  "a": 1\n}\n,\r\n{\n  "b": 2\n}\n]',
        [(b"[", b'{\n  "a": 1\n}'), (b"\n,\r\n", b'{\n  "b": 2\n}'), (b"\n]", None)],
    ),
    "compact": (b'[{"a":1},{"b":2}]', [(b"[", b'{"a":1}'), (b",", b'{"b":2}'), (b"]", None)]),
    "empty": (b"[]", [(b"[]", None)]),
    "empty and spaced": (b" [ \n ] ", [(b" [ \n ] ", None)]),
    "empty elements": (b"[{},{}]", [(b"[", b"{}"), (b",", b"{}"), (b"]", None)]),
    "nested": (b'[{"a":[{"b":{}},[]]},[1,[{}]]]', [(b"[", b'{"a":[{"b":{}},[]]}'), (b",", b"[1,[{}]]"), (b"]", None)]),
    "brackets in strings": (b'[{"}]":"{[\\"}]"},{}]', [(b"[", b'{"}]":"{[\\"}]"}'), (b",", b"{}"), (b"]", None)]),
    "escapes": (
        b'[{"a":"\\\\"},{"b":"\\\\\\""},{"c":"\\u007d\\n"}]',
        [(b"[", b'{"a":"\\\\"}'), (b",", b'{"b":"\\\\\\""}'), (b",", b'{"c":"\\u007d\\n"}'), (b"]", None)],
    ),
    "UTF-8": ('[{"t":"čtyři 🐎]"}]'.encode(), [(b"[", '{"t":"čtyři 🐎]"}'.encode()), (b"]", None)]),
    "something after the end": (b"[{}]\r\n[{}]", [(b"[", b"{}"), (b"]\r\n[{}]", None)]),
    "cut off in an element": (b'[{"a":1},{"b":', [(b"[", b'{"a":1}'), (b',{"b":', None)]),
    "cut off in a string": (b'[{"a":"\\', [(b'[{"a":"\\', None)]),
    "cut off after an element": (b"[{}\n,\r\n", [(b"[", b"{}"), (b"\n,\r\n", None)]),
    "a bare error object": (
        b'{\n  "error": {"code": 400}\n}\n',
        [(b"", b'{\n  "error": {"code": 400}\n}'), (b"\n", None)],
    ),
    "a bare object and another": (b" {} {}", [(b" ", b"{}"), (b" {}", None)]),
    "no JSON": (b"<html>{}[{}]</html>", [(b"<html>{}[{}]</html>", None)]),
    "a bare string": (b'"[{}]"', [(b'"[{}]"', None)]),
    "elements that are no objects": (b"[{},1,{}]", [(b"[", b"{}"), (b",1,{}]", None)]),
    "a bracket too many": (b"[{}},{}]", [(b"[", b"{}"), (b"},{}]", None)]),
    "no separator": (b"[{}{}]", [(b"[", b"{}"), (b"", b"{}"), (b"]", None)]),
}


@pytest.mark.parametrize("name", TABLE)
def test_elements_are_found_wherever_the_bytes_are_cut(name: str) -> None:
    body, expected = TABLE[name]
    items = [ArrayItem(prefix + (data or b""), prefix, data) for prefix, data in expected]
    assert decode([body]) == items
    assert decode(one_by_one(body)) == items
    for cut in range(len(body) + 1):
        assert decode([body[:cut], b"", body[cut:]]) == items, cut


_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab{}[]",:\\\n é🐎'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k{}[]"\\', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=3), _values, max_size=3) | st.lists(_values, max_size=3), max_size=4),
    st.sampled_from([None, 2]),
    st.integers(1, 9),
)
def test_any_array_gives_its_elements_however_it_is_cut(elements: list[object], indent: int | None, size: int) -> None:
    written = [json.dumps(element, indent=indent, ensure_ascii=False).encode() for element in elements]
    body = OPEN + SEPARATOR.join(written) + CLOSE
    whole = decode([body])
    assert [item.data for item in whole if item.data is not None] == written
    assert decode([body[i : i + size] for i in range(0, len(body), size)]) == whole


@given(st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b",", b"\r\n", b"1"]) | st.binary(max_size=3)))
def test_any_bytes_rejoin_and_decode_the_same_however_they_are_cut(chunks: list[bytes]) -> None:
    body = b"".join(chunks)
    whole = decode([body])
    assert b"".join(item.raw for item in whole) == body
    assert all(item.raw == item.prefix + (item.data or b"") for item in whole)
    assert decode(chunks) == whole
    assert decode(one_by_one(body)) == whole


def test_an_element_and_the_closing_bracket_are_returned_with_their_last_byte() -> None:
    decoder = ArrayDecoder()
    assert decoder.feed(b'[{"a":1') == []
    assert [item.data for item in decoder.feed(b"}")] == [b'{"a":1}']
    assert decoder.feed(b"\n") == []
    assert [item.raw for item in decoder.feed(b"]")] == [b"\n]"]
    assert [item.raw for item in decoder.feed(b"\n")] == [b"\n"]
    assert decoder.flush() == []


def test_bytes_that_are_no_array_pass_at_once() -> None:
    decoder = ArrayDecoder()
    assert [item.raw for item in decoder.feed(b"<html>")] == [b"<html>"]
    assert [item.raw for item in decoder.feed(b"[{}]")] == [b"[{}]"]


@pytest.mark.parametrize("text", [b"x" * 2_000_000, b'\\"\\\\' * 500_000], ids=["plain", "escapes"])
def test_a_long_string_in_small_pieces_is_read_once(text: bytes) -> None:
    element = b'{"a":"' + text + b'"}'
    body = OPEN + element + CLOSE
    decoder = ArrayDecoder()
    items = [item for i in range(0, len(body), 100) for item in decoder.feed(body[i : i + 100])]
    assert [item.data for item in items] == [element, None]


def test_every_recorded_array_decodes_to_json_and_rejoins() -> None:
    arrays = 0
    for exchange in exchanges():
        if exchange["framing"] != "json-array" or exchange["api"] not in ("devapi", "vertex", "codeassist"):
            continue
        body = exchange["response_body"].encode()
        items = decode([body])
        assert b"".join(item.raw for item in items) == body
        assert decode(one_by_one(body)) == items
        elements = [json.loads(item.data) for item in items if item.data is not None]
        assert elements == json.loads(body), exchange["id"]
        arrays += 1
    assert arrays > at_least(1, 5)
