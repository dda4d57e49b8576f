"""Contents are read in few passes, with the same result as in the plain way."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.documents import Malformed, elements, members
from addon.core.history.contents import object_in
from addon.core.history.request import parse

TEXTS = st.sampled_from(["hi", "ü\n", 'quote " and }],{"', "\\", "x" * 40])
PARTS = st.one_of(
    st.builds(lambda text: {"text": text}, TEXTS),
    st.just({"functionCall": {"name": "f", "args": {"a": [1, {}]}}}),
    st.just({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
)
CONTENTS = st.lists(
    st.builds(
        lambda role, parts: {**({"role": role} if role else {}), "parts": parts},
        st.sampled_from(["user", "model", None]),
        st.one_of(st.lists(PARTS, max_size=3), PARTS),
    ),
    max_size=5,
)
OTHERS = st.dictionaries(st.sampled_from(["tools", "generation_config", "contentsX"]), TEXTS, max_size=3)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


@given(CONTENTS, OTHERS, SEPARATORS, st.sampled_from([b"", b" \n"]))
def test_an_object_that_begins_with_its_contents_is_read_as_any_other(
    contents: list[Any], others: dict[str, str], separators: tuple[str, str], space: bytes
) -> None:
    data = b"xx" + space + json.dumps({"contents": contents, **others}, separators=separators).encode() + space + b"yy"
    start, end = 2, len(data) - 2
    read = object_in(data, start, end)
    assert read is not None
    found, spans, each = read
    assert found == members(data, start, end)
    assert spans == elements(data, found[0].start, found[0].end)
    assert [content.role for content in each] == [content.get("role") for content in contents]


@pytest.mark.parametrize(
    "body",
    [
        b'{"contents":[{"a":1}],"contents":[{"a":1}]}',
        b'{"contents":[{"a":1}],"contents":[{"a":2}]}',
        b'{"contents":[{"a":1}],"contents":[{"b":22},{"c":3}]}',
        b'{"contents":[{"a":1},{"a":1}],"contents":[{"a":1}]}',
        b'{"contents":[{"parts":[{"text":"]}]},1]"}]}],"contents":[{"parts":[]}]}',
        b'{"contents":[],"contents":[]}',
        b'{"contents":[{"a":1}],"x":1,"x":2}',
        b'{"contents":[{"a":1}]',
        b'{"contents":[{"a":1}]}}',
        b'{"contents":[{"a":1},]}',
        b'{"contents":[{"a":1}],}',
        b'{"contents":[1]}',
    ],
)
def test_an_object_that_is_no_plain_json_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        parse(body)
