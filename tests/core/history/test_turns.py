"""Turns as runs of Contents, and the hashes of their visible form."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.documents import Document, Malformed, decode, encode, replace_invalid_text
from addon.core.history.contents import LONG_DATA
from addon.core.history.request import parse
from addon.core.history.turns import CALLS, RESPONSES, SERVER_TOOLS, History, chain_key
from addon.core.history.visible import canonical, count_words, visible_digest


def history(contents: Sequence[Any]) -> History:
    request = parse(encode({"contents": list(contents)}))
    request.history.identify(request.body)
    return request.history


def content(role: str | None, *parts: Any) -> Document:
    found = [{"text": part} if isinstance(part, str) else part for part in parts]
    return {"role": role, "parts": found} if role else {"parts": found}


def call(**fields: Any) -> Document:
    return {"functionCall": {"name": "f", **fields}}


ANSWER = {"functionResponse": {"name": "f", "response": {}}}


@pytest.mark.parametrize(
    ("contents", "sides"),
    [
        ([], ""),
        ([content("user", "a"), content("model", "b")], "um"),
        ([content("user", "a"), content(None, "b"), content("function", ANSWER), content("system", "x")], "u"),
        ([content("model", "a"), content("model", call()), content("user", "b")], "mu"),
        ([content("user", "a"), content("model", call()), content("model", ANSWER), content("model", "b")], "umum"),
    ],
    ids=["none", "two", "all the user's", "a run", "responses under the role model"],
)
def test_turns_are_runs_of_one_side(contents: list[Document], sides: str) -> None:
    assert "".join(turn.side[0] for turn in history(contents).turns) == sides


def test_a_turn_knows_what_it_holds() -> None:
    used = {"tool_call": {"toolType": "X"}}
    got = {"toolResponse": None, "text": "a"}
    found = history([content("user", got), content("model", call(), used), content("user", ANSWER)])
    assert [turn.holds for turn in found.turns] == [0, CALLS | SERVER_TOOLS, RESPONSES]
    assert found.holds == CALLS | SERVER_TOOLS | RESPONSES


def digest(*contents: Document) -> bytes:
    return history([content("user", "u"), *contents]).turns[1].digest


SAME: list[tuple[str, list[Document], list[Document]]] = [
    ("chunks", [content("model", "ab"), content("model", "c")], [content("model", "a", "", "bc")]),
    ("outer white space", [content("model", "\n a b \t")], [content("model", "a b")]),
    ("thoughts", [content("model", {"text": "Hm", "thought": True}, "a")], [content("model", "a")]),
    ("empty parts", [content("model", "a", {}, {"text": ""})], [content("model", "a")]),
    ("null fields", [content("model", {"text": "a", "functionCall": None, "thought": None})], [content("model", "a")]),
    (
        "signatures",
        [content("model", {"text": "a", "thoughtSignature": "x"})],
        [content("model", {"text": "a", "thought_signature": "y"})],
    ),
    ("ids", [content("model", call(id="1", args={}))], [content("model", call(id="2"))]),
    ("no args", [content("model", call(args={}))], [content("model", call(args=None))]),
    ("numbers", [content("model", call(args={"n": 1}))], [content("model", call(args={"n": 1.0}))]),
    ("zero", [content("model", call(args={"n": 0}))], [content("model", call(args={"n": -0.0}))]),
    ("large", [content("model", call(args={"n": 2**53 + 1}))], [content("model", call(args={"n": float(2**53)}))]),
    ("key order", [content("model", call(args={"a": 1, "b": 2}))], [content("model", call(args={"b": 2, "a": 1}))]),
    (
        "base64 alphabet",
        [content("model", {"inlineData": {"mimeType": "image/png", "data": "-_A="}})],
        [content("model", {"inline_data": {"data": "+/A", "mime_type": "image/png"}})],
    ),
    (
        "spelling",
        [content("model", {"fileData": {"fileUri": "u", "mimeType": "t"}})],
        [content("model", {"file_data": {"mime_type": "t", "file_uri": "u", "displayName": None}})],
    ),
    ("a single part", [{"role": "model", "parts": {"text": "a"}}], [content("model", "a")]),
]


@pytest.mark.parametrize(("one", "other"), [(a, b) for _, a, b in SAME], ids=[name for name, _, _ in SAME])
def test_turns_that_look_the_same_to_a_client_are_equal(one: list[Document], other: list[Document]) -> None:
    assert digest(*one) == digest(*other)


DIFFERENT: list[tuple[str, Document, Document]] = [
    ("text", content("model", "a"), content("model", "b")),
    ("inner white space", content("model", "a b"), content("model", "a  b")),
    ("args", content("model", call(args={"n": 1})), content("model", call(args={"n": 2}))),
    ("keys of the user's", content("model", call(args={"a_b": 1})), content("model", call(args={"aB": 1}))),
    ("a null of the user's", content("model", call(args={"a": None})), content("model", call())),
    ("true is not one", content("model", call(args={"a": True})), content("model", call(args={"a": 1}))),
    ("string is not number", content("model", call(args={"a": "1"})), content("model", call(args={"a": 1}))),
    ("name", content("model", call()), content("model", {"functionCall": {"name": "g"}})),
    ("call or text", content("model", call()), content("model", '["functionCall","f",{}]')),
    ("two calls", content("model", call()), content("model", call(), call())),
    (
        "media",
        content("model", {"inlineData": {"mimeType": "a/b", "data": "AAAA"}}),
        content("model", {"inlineData": {"mimeType": "a/b", "data": "AAAB"}}),
    ),
]


@pytest.mark.parametrize(("one", "other"), [(a, b) for _, a, b in DIFFERENT], ids=[name for name, _, _ in DIFFERENT])
def test_turns_that_look_different_to_a_client_differ(one: Document, other: Document) -> None:
    assert digest(one) != digest(other)


def test_a_digest_of_decoded_parts_is_that_of_the_same_turn_in_a_body() -> None:
    parts: list[Document] = [{"text": "a "}, call(args={"x": 1.5}), {"executableCode": {"code": "1"}}, {"text": "b"}]
    assert visible_digest(parts) == digest(content("model", *parts))


@pytest.mark.parametrize(
    "contents",
    [
        [b'{"role":"model","parts":[{"text":" a "},{"text":""},{"text":"b\\u00e9\\/ "}]}'],
        [b'{"parts":[{"text":" a "}],"role":"model"}', '{"role":"model","parts":[{"text":"bé/"}]}'.encode()],
        [b'{"role":"model","parts":{"text":" a b\\u00e9/"}}'],
        [b'{"role":"model","parts":[{"text":"x","text":" a "},{"text":"b\\u00e9/","thoughtSignature":"c2ln"}]}'],
        [b'{"role":"model","parts":[{"text":null},{"text":"a b","thought":true},{"text":"a b\\u00e9/"}]}'],
    ],
    ids=["texts", "a run", "one part", "a signature", "others"],
)
def test_a_text_is_the_same_however_it_is_sent(contents: list[bytes]) -> None:
    (turn,) = (request := parse(b'{"contents":[%b]}' % b",".join(contents))).history.turns
    request.history.identify(request.body)
    assert turn.full_text(request.body).replace(" ", "") == "abé/"
    assert turn.digest == visible_digest([{"text": turn.text}])


def _escaped(character: str, way: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if way == "short" and character in short:
        return short[character]
    if way == "plain" and character >= " " and character not in '"\\' and not "\ud800" <= character <= "\udfff":
        return character
    return json.dumps(character)[1:-1] if character in '"\\' or character > "~" else f"\\u{ord(character):04x}"


CHARACTERS = st.one_of(st.characters(), st.sampled_from('"\\/u \n\t\0\x1f\x85\xa0é—\u3000\U0001f600\ud83d\ude00'))
STRINGS = st.lists(st.tuples(CHARACTERS, st.sampled_from(["plain", "short", "hex"])), max_size=12).map(
    lambda pairs: '"' + "".join(_escaped(*pair) for pair in pairs) + '"'
)


@given(st.lists(STRINGS, max_size=3), st.booleans())
def test_the_digest_of_texts_is_that_of_their_trimmed_utf_8(strings: list[str], with_others: bool) -> None:
    """The keys in users' databases are made of this form."""
    parts = [f'{{"text":{string}}}' for string in strings]
    parts += ['{"text":"x","thought":true}'] if with_others else []
    body = replace_invalid_text(b'{"contents":[{"role":"model","parts":[%b]}]}' % ",".join(parts).encode())
    whole = "".join(decode(string.encode()) for string in strings).strip()
    (turn,) = (request := parse(body)).history.turns
    request.history.identify(body)
    assert turn.text == turn.full_text(body) == whole
    assert turn.digest == xxhash.xxh3_128_digest(b"text" + whole.encode())


BASE64 = st.text("AZaz09+/", max_size=24)


@given(BASE64, st.sampled_from(["", "=", "=="]), st.sampled_from(["image/png", "", None]), st.integers(0, 6))
def test_the_digest_of_inline_data_is_that_of_its_base64(data: str, padding: str, kind: str | None, way: int) -> None:
    """The keys in users' databases are made of this form, too."""
    plain = {} if kind is None else {"mimeType": kind}
    blob = {**plain, "data": data + padding}
    url_safe = {**blob, "data": data.translate(str.maketrans("+/", "-_"))}
    spelled = {"data": data} if kind is None else {"data": data, "mime_type": kind}
    sent = [
        json.dumps(blob, separators=(",", ":")),
        json.dumps(blob),
        json.dumps({"data": data, **plain}, separators=(",", ":")),
        json.dumps(blob, separators=(",", ":")).replace("/", "\\/"),
        json.dumps(url_safe, separators=(",", ":")),
        json.dumps(spelled, separators=(",", ":")),
        json.dumps({**blob, "displayName": "x"}, separators=(",", ":")),
    ][way]
    identity = (b"" if kind is None else json.dumps(kind).encode()) + (b'"%b' % data.encode() if data else b"")
    body = b'{"contents":[{"role":"model","parts":[{"inlineData":%b}]}]}' % sent.encode()
    (turn,) = (request := parse(body)).history.turns
    request.history.identify(body)
    assert turn.digest == xxhash.xxh3_128_digest(b"inlineData" + identity + b"text")


@pytest.mark.parametrize("size", [8, LONG_DATA, 2 * LONG_DATA])
def test_a_long_image_of_an_answer_is_known_however_the_client_sends_it_back(size: int) -> None:
    data = ("a+/b" * size)[: size - 2]
    visible: list[Document] = [{"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": data + "=="}}]
    sent = {"inline_data": {"data": data.translate(str.maketrans("+/", "-_")), "mime_type": "image/png"}}
    other = {"inlineData": {"mimeType": "image/png", "data": data[:-1] + "c"}}
    assert digest(content("model", *visible)) == digest(content("model", "a", sent)) == visible_digest(visible)
    assert digest(content("model", "a"), content("model", sent)) == visible_digest(visible)
    assert digest(content("model", "a", other)) != visible_digest(visible)


def test_chains_cover_every_turn_before() -> None:
    long = history([content("user", "a"), content("model", "b"), content("user", "c"), content("model", "d")]).turns
    assert long[3].chain == chain_key(chain_key(chain_key(chain_key(b"", "user", long[0].digest), "model",
        long[1].digest), "user", long[2].digest), "model", long[3].digest)  # fmt: skip
    cut = history([content("user", "c"), content("model", "d")]).turns
    assert cut[1].chain != long[3].chain
    assert cut[1].digest == long[3].digest


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], 0),
        ([{"text": "Done."}], 1),
        ([{"text": "yes, YES! Yes"}], 1),
        ([{"text": "I've put 2 eggs and 12 onions "}, {"text": "on it"}], 8),
        ([{"text": "long thoughts that nobody else has", "thought": True}, {"text": "ok"}], 1),
        ([{"text": "牛乳を買い物リストに追加しました。"}], 8),
        ([{"text": "Ich habe die Milch auf die Liste gesetzt."}], 7),
        ([call(args={"city": "Oslo", "days": 3})], 3),
        ([{"functionResponse": {"name": "f", "response": {"result": "light rain"}}}], 3),
        ([{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}], 0),
        ([{"text": "word " * 10_000 + "and another"}], 1),
    ],
)
def test_different_words_are_counted(parts: list[Document], words: int) -> None:
    assert count_words(parts) == words


def test_a_turn_that_cannot_be_decoded_is_identified_by_its_bytes() -> None:
    odd = [content("user", "u"), content("model", {"inlineData": "x"})]
    one, other = history(odd).turns[1], history([odd[0], content("model", {"inlineData": "y"})]).turns[1]
    assert one.digest == history(odd).turns[1].digest != other.digest


@pytest.mark.parametrize("contents", [[1], ["a"], [{"parts": ["a"]}], [{"role": 1}], [{"parts": "a"}]])
def test_a_value_that_is_no_content_is_malformed(contents: list[Any]) -> None:
    with pytest.raises(Malformed):
        history(contents)


@given(st.integers(-(10**400), 10**400) | st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_has_one_form(number: float) -> None:
    form = canonical(number)
    assert canonical(form) == form
    assert encode(form)
    if abs(number) < 2**53 and float(number).is_integer():
        assert encode(canonical(float(number))) == encode(canonical(int(number)))


@pytest.mark.parametrize("named", [True, False])
def test_a_key_in_both_spellings_is_no_error(named: bool) -> None:
    given = {"an_id": {"x": 1}, "anId": "text"}
    assert canonical(given, named=named) == canonical(dict(reversed(given.items())), named=named)
