"""Bodies as spans: read at once or on from a known beginning, and assembled again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.documents import Malformed, encode
from addon.core.history.contents import LONG_DATA
from addon.core.history.request import Request, assemble, parse

TEXTS = st.sampled_from(["hi", "ü\n", 'quote " and }]', "x" * 40, 5, None, ["x"], '"}]},{"'])
SIZES = (1, LONG_DATA // 4 - 9, LONG_DATA // 4, LONG_DATA)
IMAGES = st.sampled_from([{"inlineData": {"mimeType": "image/png", "data": "ab+/" * size}} for size in SIZES])
CONTENTS = st.lists(
    st.builds(
        lambda role, parts: {**({"role": role} if role else {}), "parts": parts},
        st.sampled_from(["user", "model", "function", None]),
        st.lists(st.builds(lambda text: {"text": text}, TEXTS) | IMAGES, max_size=3),
    ),
    min_size=1,
    max_size=8,
)
OTHERS = st.dictionaries(st.sampled_from(["tools", "generation_config", "x", "unknownField"]), TEXTS, max_size=3)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


def content_of(request: Request) -> Any:
    """The content of a request, without how it was read."""
    request.history.identify(request.body)
    turns = [(t.side, t.spans, t.holds, t.full_text(request.body), t.digest, t.chain) for t in request.history.turns]
    return request[:5], turns, request.history.end, request.history.holds


def body_of(contents: Any, before: Any, after: Any, path: list[str], separators: tuple[str, str]) -> bytes:
    document = {**before, "contents": contents, **{f"{key}2": value for key, value in after.items()}}
    for name in path:
        document = {"first": 1, name: document, "last": {"a": []}}
    return json.dumps(document, separators=separators).encode()


@given(CONTENTS, st.booleans(), OTHERS)
def test_a_history_reads_the_same_in_any_form(contents: list[Any], is_role_last: bool, others: Any) -> None:
    if is_role_last:
        contents = [{"parts": one["parts"], **one} for one in contents]
    read: list[Any] = []
    digests: list[dict[int, bytes]] = []  # clients escape the slashes of their own images always, or never
    for separators in ((",", ":"), (", ", ": ")):
        for slash in ("/", "\\/"):
            text = json.dumps({"contents": contents, **others}, separators=separators)
            body = text.replace("/", slash).encode()
            request = parse(body)
            request.history.identify(body)
            turns = request.history.turns
            assert [json.loads(body[a:b]) for turn in turns for a, b in turn.spans] == contents
            assert [json.loads(body[m.start : m.end]) for m in request.members] == [contents, *others.values()]
            read.append([(turn.side, turn.holds, turn.full_text(body)) for turn in turns])
            digests.append({at: t.digest for at, t in enumerate(turns) if t.side == "model" or slash == "/"})
    assert all(one == read[0] for one in read)
    assert all(one == {at: digests[0][at] for at in one} for one in digests)


@given(CONTENTS, OTHERS, OTHERS, st.sampled_from([[], ["request"]]), SEPARATORS, st.data())
def test_reading_on_from_any_beginning_equals_reading_anew(
    contents: list[Any], before: Any, after: Any, path: list[str], separators: tuple[str, str], data: st.DataObject
) -> None:
    known = None
    cuts = data.draw(st.lists(st.integers(1, len(contents)), max_size=4).map(sorted))
    for cut in [*cuts, len(contents)]:
        body = body_of(contents[:cut], before, after if data.draw(st.booleans()) else {}, path, separators)
        cold = parse(body, path)
        assert known is None or known.is_start_of(body)
        warm = parse(body, path, known)
        assert content_of(warm) == content_of(cold)
        known = warm.prefix() or known


def test_a_beginning_ends_with_the_last_model_turn() -> None:
    def of(*roles: str) -> bytes:
        return encode({"contents": [{"role": role, "parts": [{"text": role * 9}]} for role in roles]})

    prefix = parse(of("user", "model", "user", "user")).prefix()
    assert prefix is not None
    assert [turn.side for turn in prefix.history.turns] == ["user", "model"]
    assert prefix.is_start_of(of("user", "model", "model"))
    assert not prefix.is_start_of(of("user", "model")[: prefix.end])
    assert not prefix.is_start_of(of("user", "user", "model"))
    alone = parse(of("user")).prefix()
    assert alone is not None
    assert len(alone.history.turns) == 1


def test_a_turn_that_continues_is_a_new_turn_and_the_known_one_stays() -> None:
    one = encode({"contents": [{"role": "user", "parts": []}, {"role": "model", "parts": [{"text": "a"}]}]})
    more = one[:-2] + b',{"role":"model","parts":[{"text":"b"}]}]}'
    first = parse(one)
    first.history.identify(one)
    known = first.prefix()
    assert known is not None
    digest = known.history.turns[1].digest
    warm = parse(more, (), known)
    assert content_of(warm) == content_of(parse(more))
    assert known.history.turns[1].digest == digest != warm.history.turns[1].digest


def test_known_turns_are_shared_and_not_read_again() -> None:
    one = encode({"contents": [{"role": "user", "parts": []}, {"role": "model", "parts": []}]})
    first = parse(one)
    warm = parse(one[:-2] + b',{"role":"user"}]}', (), first.prefix())
    assert warm.history.turns[0] is first.history.turns[0]


@pytest.mark.parametrize(
    "tail",
    [b'],"contents":[]}}', b'],"x":1}}', b']},"model":1}', b']},"request":{}}', b"", b"]}", b",]}}", b"]}}x", b",1]}}"],
)
def test_a_malformed_body_is_also_malformed_after_a_known_beginning(tail: bytes) -> None:
    head = b'{"model":0,"request":{"x":0,"contents":[{"role":"user"},{"role":"model"}'
    known = parse(head + b"]}}", ["request"]).prefix()
    assert known is not None
    for prefix in (None, known):
        with pytest.raises(Malformed):
            parse(head + tail, ["request"], prefix)


@pytest.mark.parametrize(
    "body",
    [
        b'{"contents":[{"a":1}],"contents":[{"a":1}]}',
        b'{"contents":[{"a":1}],"contents":[{"b":22},{"c":3}]}',
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
def test_a_body_that_is_no_plain_json_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        parse(body)


@pytest.mark.parametrize("body", [b"{}", b'{"contents":null}', b'{"contents":"a"}', b'{"contents":[]}'])
def test_a_body_without_a_history(body: bytes) -> None:
    request = parse(body)
    assert list(request.history.turns) == []
    assert request.prefix() is None


def test_a_single_content_is_a_history_of_one() -> None:
    request = parse(b'{"contents": {"parts": {"text": "a"}}}')
    assert [turn.side for turn in request.history.turns] == ["user"]
    assert request.prefix() is None


def test_a_body_without_its_envelope_is_malformed() -> None:
    with pytest.raises(Malformed):
        parse(b'{"contents":[]}', ["request"])


def test_a_value_by_its_name_in_either_spelling() -> None:
    request = parse(b'{"tool_config" : {"a": 1} , "cachedContent":null}')
    assert request.value("toolConfig") == b'{"a": 1}'
    assert request.value("cachedContent") is None
    assert request.value("tools") is None


@given(CONTENTS, OTHERS, OTHERS, st.sampled_from([[], ["request"]]), SEPARATORS)
def test_a_body_without_changes_is_the_same_object(
    contents: list[Any], before: Any, after: Any, path: list[str], separators: tuple[str, str]
) -> None:
    body = body_of(contents, before, after, path, separators)
    request = parse(body, path)
    assert assemble(request, {}) is body
    assert assemble(request, {"absent": None}) is body
    pieces = [turn.spans[0][:1] + turn.spans[-1][1:] for turn in request.history.turns]
    assert json.loads(assemble(request, {}, pieces)) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "replaced", "expected"),
    [
        (b'{"a": 1, "tools":[1],"b":2}', {"tools": b"[2]"}, b'{"a": 1,"tools":[2],"b":2}'),
        (b'{"a": 1, "tools":[1],"b":2}', {"tools": None}, b'{"a": 1,"b":2}'),
        (b'{"tools":[1]}', {"tools": None}, b"{}"),
        (b"{}", {"tools": b"[2]"}, b'{"tools":[2]}'),
        (b'{"tool_config":1}', {"toolConfig": b"{}", "tools": b"[]"}, b'{"tool_config":{},"tools":[]}'),
        (b' {"a":1} ', {"tools": b"[2]"}, b'{"a":1,"tools":[2]}'),
    ],
)
def test_members_are_replaced_in_the_clients_spelling_or_removed(
    body: bytes, replaced: dict[str, bytes | None], expected: bytes
) -> None:
    assert assemble(parse(body), replaced) == expected


def test_contents_are_assembled_from_spans_and_new_contents() -> None:
    body = b'{"a":1,"contents":[ {"role":"user"} , {"role":"model"}],"b":2}'
    request = parse(body)
    (span,) = request.history.turns[0].spans
    assert assemble(request, {}, [span, b'{"x":1}']) == b'{"a":1,"contents":[{"role":"user"},{"x":1}],"b":2}'
    assert assemble(request, {}, []) == b'{"a":1,"contents":[],"b":2}'
