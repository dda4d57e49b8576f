"""The usual history is read in few steps, with the same result as any other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.documents import Malformed
from addon.core.history.contents import object_in
from addon.core.history.turns import History
from addon.core.history.usual import usual_in

ODD = ["", " \u3000", "\\", "\\\\", '"', '"}]}]', '"}]},{"role":"model","parts":[{"text":"', "turn_0", "é\n", "\ufeffx"]
TEXTS = st.lists(st.sampled_from([*ODD, "Hello, it is quiet here. " * 9]), max_size=3).map("".join)
OTHERS = st.sampled_from(
    [{}, {"tools": []}, {"examples": [{"role": "model", "parts": [{"text": "a"}]}, {"role": "user", "parts": []}]}]
)


def user(role: str, text: str, *, role_last: bool = False) -> dict[str, Any]:
    parts = {"parts": [{"text": text}]}
    return {**parts, "role": role} if role_last else {"role": role, **parts}


def state_of(history: History) -> Any:
    turns = [(t.side, t.spans, t.holds, t.utf8, t.may_hold_id, t.digest, t.chain) for t in history.turns]
    return turns, history.end, history.holds, history.identified, history.text_size


def read_otherwise(data: bytes) -> tuple[Any, History] | None:
    read = object_in(data, 2, len(data) - 2)
    if read is None:
        return None
    history = History.of(*read[1:])
    history.identify(data)
    return read[0], history


@given(st.lists(TEXTS, min_size=1, max_size=70), OTHERS, st.booleans(), st.booleans())
def test_a_usual_history_is_read_as_any_other(texts: list[str], others: Any, ascii_only: bool, role_last: bool) -> None:
    sides = ("user", "model")
    contents = [user(sides[at % 2], text, role_last=role_last) for at, text in enumerate(texts)]
    document = json.dumps({"contents": contents, **others}, separators=(",", ":"), ensure_ascii=ascii_only)
    data = b"xx" + document.encode() + b"yy"
    read, otherwise = usual_in(data, 2, len(data) - 2), read_otherwise(data)
    assert read is not None or "examples" in others  # which may look like a part of the history
    assert otherwise is not None
    if read is not None:
        assert read[0] == otherwise[0]
        assert state_of(read[1]) == state_of(otherwise[1])


U, M = b'{"role":"user","parts":[{"text":"%b"}]}', b'{"role":"model","parts":[{"text":"%b"}]}'


@pytest.mark.parametrize(
    "contents",
    [
        [U % b"a", U % b"b"],
        [M % b"a", U % b"b"],
        [U % b'a","b', M % b"c"],
        [U % b"a\\", M % b',"b'],
        [U % b"a\\\\\\", M % b',"b'],
        [U % b"a", M % b"b\\", U % b',"c'],
        [U % b"a", M % b"\\ud800"],
        [U % b"a", M % b"\xff"],
        [U % b"a\nb"],
        [U % b'a"},{"text":"b'],
        [U % b'a","thought":true,"x":"'],
        [U % b"a", M % b'b"}]},{"role":"user","parts":[{"text":"c"}],"x":[{"text":"'],
        [U % b"a", b'{"role":"model","parts":[{"functionCall":{}}]}', U % b"b"],
        [U % b"a", b'{"role":"user","parts":[{"functionResponse":{}}]}', M % b"b", U % b"c"],
        [U % b"a", M % b'", "'],
        [(U % b"a")[:-5]],
        [],
    ],
)
def test_any_other_history_is_left_to_others(contents: list[bytes]) -> None:
    data = b'xx{"contents":[%b]}yy' % b",".join(contents)
    assert usual_in(data, 2, len(data) - 2) is None


@pytest.mark.parametrize("end", [b"", b"]", b',"contents":[]}', b',"x":1,"x":2}', b'"}', b"}}"])
def test_what_follows_a_usual_history_must_be_json(end: bytes) -> None:
    data = b'{"contents":[%b]%b' % (U % b"a", end)
    with pytest.raises(Malformed):
        usual_in(data, 0, len(data))
