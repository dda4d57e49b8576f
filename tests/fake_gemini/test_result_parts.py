"""The strict Gemini's rules of functionResponse.parts."""

from __future__ import annotations

from typing import Any

import pytest

from addon.fake_gemini.errors import Refused
from tests.fake_gemini.judged import TOOLS, USER, Json, call, content, judge, replied, response

BLOB: Json = {"mimeType": "image/png", "data": "iVBORw=="}


def body(*parts: Json, **more: Any) -> Json:
    return {"tools": TOOLS, "contents": [USER, replied(call()), content(response(parts=list(parts), **more))]}


@pytest.mark.parametrize("kind", ["image/png", "image/webp", "application/pdf", "text/plain", "audio/wav", "video/mp4"])
def test_gemini_3_takes_media_in_results(kind: str) -> None:
    judge(body({"inlineData": {**BLOB, "mimeType": kind}}))


def test_vertex_takes_references_and_files() -> None:
    parts = {"inlineData": {**BLOB, "displayName": "a"}}, {"fileData": {"fileUri": "gs://b/c", "mimeType": "image/png"}}
    judge(body(*parts, response={"shot": {"$ref": "a"}}), place="vertex")


@pytest.mark.parametrize(
    ("part", "message", "model", "place"),
    [
        ({"inlineData": BLOB}, "not supported by this model", "gemini-2.5-flash", "developer"),
        ({"inlineData": {**BLOB, "mimeType": "image/gif"}}, "Unsupported MIME type: image/gif", "", "developer"),
        ({"inlineData": {"data": "iVBORw=="}}, "Unsupported MIME type: None", "", "developer"),
        ({"inlineData": {"mimeType": "image/png"}}, "must be base64", "", "developer"),
        ({"inlineData": {**BLOB, "data": "?"}}, "", "", "developer"),
        ({}, "required oneof field 'data'", "", "developer"),
        ({"text": "x"}, 'Unknown name "text"', "", "developer"),
    ],
)
def test_other_parts_are_refused(part: Json, message: str, model: str, place: str) -> None:
    with pytest.raises(Refused) as refused:
        judge(body(part), model or "gemini-3-flash-preview", place)
    assert message in str(refused.value)


@pytest.mark.parametrize(("place", "name"), [("vertex", "b"), ("developer", "a")])
def test_references_must_name_a_part_and_only_vertex_has_them(place: str, name: str) -> None:
    part = {"inlineData": {**BLOB, "displayName": "a"}}
    with pytest.raises(Refused, match="references the part"):
        judge(body(part, response={"shot": {"$ref": name}}), place=place)


def test_display_names_are_unique() -> None:
    part = {"inlineData": {**BLOB, "displayName": "a"}}
    with pytest.raises(Refused, match="unique"):
        judge(body(part, part), place="vertex")
