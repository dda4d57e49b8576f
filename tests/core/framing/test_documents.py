"""The positions of members and elements in the bytes, and keys in either spelling."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from addon.core.framing.documents import (
    Malformed,
    all_utf8_of,
    as_list,
    camel,
    decode,
    elements,
    encode,
    get,
    members,
    objects,
    parts_of,
    replace_invalid_text,
    snake,
    trimmed,
    utf8_of,
)

JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text(max_size=4) | st.sampled_from(['a"b', "a\\", "}", "ø", "a_b", '{"a":1}', ",", ":"])
SPACES = st.sampled_from(["", " ", "\n", "\t\r\n "])


@given(st.dictionaries(KEYS, JSON, max_size=5), st.booleans(), st.integers(0, 2), SPACES)
def test_members_are_found_whatever_the_spacing_and_the_escapes(
    document: dict[str, Any], ascii_only: bool, indent: int, space: str
) -> None:
    names = [camel(key) for key in document]
    text = json.dumps(
        document, ensure_ascii=ascii_only, indent=indent or None, separators=None if indent else (",", ":")
    )
    data = (space + text + space).encode()
    if len(set(names)) != len(names):
        with pytest.raises(Malformed):
            members(data)
        return
    found = members(data)
    assert [member.name for member in found] == names
    for member, (key, value) in zip(found, document.items(), strict=True):
        assert json.loads(data[member.start : member.end]) == value
        assert json.loads(b"{" + data[member.key : member.end] + b"}") == {key: value}


@given(st.lists(JSON, max_size=5), st.integers(0, 2), SPACES)
def test_elements_are_found_whatever_the_spacing(array: list[Any], indent: int, space: str) -> None:
    data = (space + json.dumps(array, indent=indent or None) + space).encode()
    spans = elements(b"xx" + data + b"yy", 2, len(data) + 2)
    assert [json.loads(data[start - 2 : end - 2]) for start, end in spans] == array


def test_members_of_an_object_inside_a_body() -> None:
    data = b'{"outer": {"a" : 1 , "b":[2]} , "c":3}'
    outer = members(data)[0]
    assert [(m.name, data[m.start : m.end]) for m in members(data, outer.start, outer.end)] == [
        ("a", b"1"),
        ("b", b"[2]"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"a":1',
        b'{"a":1}{"b":2}',
        b'{"a":1,"a":2}',
        b'{"a":1,"b":2,"a":3}',
        b'{"a":"}","a":1}',
        b'{"a":1,"\\u0061":2}',
        b'{"toolConfig":1,"tool_config":2}',
        b"[" * 100_000,
    ],
)
def test_a_value_that_is_no_object_or_repeats_a_key_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        members(data)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b"[1,]"])
def test_a_value_that_is_no_array_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        elements(data, 0, len(data))


@pytest.mark.parametrize("data", [b"", b"{", b"nope", b"1e999", b"[" * 100_000])
def test_invalid_json_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


@pytest.mark.parametrize(
    ("one", "other"), [("tool_config", "toolConfig"), ("a", "a"), ("parts", "parts"), ("ttl_2x", "ttl2x")]
)
def test_names_become_camel_case(one: str, other: str) -> None:
    assert camel(one) == other
    assert camel(other) == other


def test_a_value_under_either_spelling_of_its_name() -> None:
    assert get({"toolConfig": 1}, "toolConfig") == 1
    assert get({"tool_config": 1}, "toolConfig") == 1
    assert get({"toolConfig": None}, "toolConfig") is None
    assert snake("includeServerSideToolInvocations") == "include_server_side_tool_invocations"


def test_a_single_value_stands_for_a_list_of_one() -> None:
    values: list[Any] = [None, 1, [1, 2], {}]
    assert [as_list(value) for value in values] == [[], [1], [1, 2], [{}]]
    assert list(objects([{"a": 1}, 2, None])) == [{"a": 1}]
    assert parts_of({"parts": {"text": "a"}}) == [{"text": "a"}]
    assert parts_of({"parts": [1, {"text": "a"}]}) == [{"text": "a"}]
    assert parts_of({}) == []


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\ude00 \uD83D\ud83d\ude00\uDE00"', "\ufffd \ufffd😀\ufffd"),
        (rb'"\ud83d\n\ude00"', "\ufffd\n\ufffd"),
        (rb'"\\ud83d \"\ud83d\""', '\\ud83d "\ufffd"'),
        (rb'"\u00e9\ud800\u00e9"', "é\ufffdé"),
        (b'"a\xffb\xed\xa0\x80"', "a\ufffdb\ufffd\ufffd\ufffd"),
        (b'{"\xff": "\\ud800"}', {"\ufffd": "\ufffd"}),
    ],
)
def test_texts_that_are_no_unicode_are_replaced(data: bytes, value: Any) -> None:
    assert decode(data) == value
    assert decode(replace_invalid_text(data)) == value


@pytest.mark.parametrize("data", [b"", b"{", rb'"\ud83d', rb'{"a": "\ud8', b"\xff", rb'"\q"', rb'["\udc00",]'])
def test_invalid_json_stays_invalid_whatever_its_texts_are(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


@given(st.text())
def test_valid_texts_stay_unchanged(text: str) -> None:
    for data in (json.dumps(text).encode(), encode(text)):
        assert replace_invalid_text(data) == data


STRINGS = st.lists(
    st.sampled_from(
        [b"a", b" ", b"\\n", b"\\/", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", "é€😀".encode(), b"\xc3", b"\n", b"\\q"]
    )
).map(lambda pieces: b'"%b"' % b"".join(pieces))


@given(st.lists(STRINGS | st.sampled_from([b"1", b"null", b'{"a":"b"}', b"[]", b"1e999"]), max_size=3))
def test_strings_are_read_as_utf_8_if_all_of_them_are_valid(values: list[bytes]) -> None:
    def known(value: bytes) -> bytes | None:
        try:
            decoded = decode(value)
        except Malformed:
            return None
        return decoded.encode() if isinstance(decoded, str) else b""

    raw = [Raw(value) for value in values]
    expected = [known(value) for value in values]
    for one, utf8 in zip(raw, expected, strict=True):
        if utf8 is not None:
            assert utf8_of(one) == utf8
    found = all_utf8_of(raw)
    assert found is None or found == expected
    assert found is not None or any(
        value[:1] != b'"' or not value.isascii() or b"\\" in value or b"\n" in value for value in values
    )


@given(
    st.text(
        st.one_of(
            st.characters(exclude_categories=["Cs"]), st.sampled_from(" \t\n\x0b\x1c\x1f\x85\xa0\u1680\u2028\u3000。")
        )
    )
)
def test_utf_8_is_trimmed_as_texts_are(text: str) -> None:
    assert trimmed(text.encode()) == text.strip().encode()


def test_long_keys_of_clients_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(40):
            assert camel(f"a_key{number}" + "x" * 50_000).startswith("aKey")
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
