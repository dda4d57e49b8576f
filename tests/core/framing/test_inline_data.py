"""Long inline data is taken out of bodies, wherever and however it stands there, and nothing else is."""

import json
from typing import Any

import pytest

from addon.core.history.contents import LONG_DATA, data_identity, without_inline_data

DATA = "ab+/" * (LONG_DATA // 4)
PNG = {"mimeType": "image/png", "data": DATA}


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": PNG},
        {"inline_data": {"data": DATA, "mime_type": "image/png"}},
        {"inlineData": {"displayName": "x", **PNG}},
        {"functionResponse": {"name": "f", "response": {}, "parts": [{"inlineData": PNG}]}},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", "\n: ")])
@pytest.mark.parametrize("before", [0, 1, LONG_DATA // 2 - 60, LONG_DATA])
def test_long_data_is_taken_out_and_places_are_known(part: Any, separators: tuple[str, str], before: int) -> None:
    texts = [{"text": "start" + "." * before}, part, {"text": "middle"}, part, {"text": "end"}]
    body = json.dumps(texts, separators=separators).replace("image/", "image\\/").encode()
    short = without_inline_data(body, 7)
    assert len(short.data) < before + 1000
    assert short.data.decode().count(json.loads(data_identity(f'"{DATA}"'.encode()) + b'"')) == 2
    for word in ("start", "middle", "end"):
        assert short.place(short.data.index(word.encode())) == body.index(word.encode()) + 7
    assert short.place(len(short.data)) == len(body) + 7


@pytest.mark.parametrize(
    "value",
    [
        {"text": DATA},
        {"inlineData": {"mimeType": "image/png", "data": DATA[8:]}},
        {"data": DATA},
        {"inlineData": {"mimeType": DATA}},
        {"inlineData": {"data": [DATA]}},
        {"text": '"inlineData":{"data":"' + DATA},
        {"inlineData": {"data": DATA + '"'}},
        {'x"inlineData': {"data": DATA}},
    ],
)
def test_anything_else_stays(value: Any) -> None:
    body = json.dumps([value, {"text": "end"}], separators=(",", ":")).encode()
    assert without_inline_data(body).data is body


@pytest.mark.parametrize("body", [b"", b" " * LONG_DATA * 2, b'{"inlineData":{"data":"' + DATA.encode()])
def test_what_is_no_json_stays(body: bytes) -> None:
    assert without_inline_data(body).data is body


@pytest.mark.parametrize("size", [8, LONG_DATA // 4, LONG_DATA])
def test_data_has_one_identity(size: int) -> None:
    data = DATA[: size - 1] + "x"
    known = data_identity(f'"{data}"'.encode())
    for same in (data.translate(str.maketrans("+/", "-_")), data.replace("/", "\\/"), data + "==", data + "="):
        assert data_identity(f'"{same}"'.encode()) == known
    assert data_identity(f'"{data[:-1]}y"'.encode()) != known
