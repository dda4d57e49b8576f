"""Calls and responses: found, compared by value, written as text."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.core.history.calls import (
    as_text,
    calls_in,
    decoded_signature,
    echoed_values,
    has_user_content,
    responses_in,
    responses_lead,
)
from addon.core.history.outcomes import response_of

CALL: Document = {"functionCall": {"name": "f", "args": {"a": 1}, "id": "x"}}
ANSWER: Document = {"functionResponse": {"name": "f", "response": {"r": 1}, "id": "x"}}
USED: Document = {"toolCall": {"toolType": "T", "args": {"q": 1}}}
GOT: Document = {"toolResponse": {"toolType": "T", "response": {"r": 2}}}


def content(*parts: Any) -> Document:
    return {"role": "model", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("+/8=", "-_8=", True),
        ("+/8=", "-_8", True),
        ("skip_thought_signature_validator", "skip_thought_signature_validator", True),
        ("c2ln", "c2lo", False),
        (None, None, True),
        ("", None, False),
        ("not base64 ø", "not base64 ø", True),
        (7, None, True),
    ],
)
def test_signatures_are_compared_by_value(one: Any, other: Any, same: bool) -> None:
    assert (decoded_signature(one) == decoded_signature(other)) is same


def test_calls_and_responses_in_order_and_in_either_spelling() -> None:
    contents = [content(CALL, "a"), content({"function_call": {"name": "g"}}), content({"functionCall": None})]
    assert [call["name"] for call in calls_in(contents)] == ["f", "g"]
    answers = [content(ANSWER, {"function_response": {"name": "g"}}), {"role": "user"}]
    assert [answer["name"] for answer in responses_in(answers)] == ["f", "g"]


@pytest.mark.parametrize(
    ("part", "same"),
    [
        ({"function_call": {"id": "x", "args": {"a": 1.0}, "name": "f"}, "thought_signature": "-_8"}, True),
        ({**CALL, "thoughtSignature": "+/8=", "other": 1}, True),
        (CALL, False),
        ({**CALL, "thoughtSignature": "AAAA"}, False),
        ({"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "+/8="}, False),
        ({"functionCall": {"name": "f", "args": {"a": 2}, "id": "x"}, "thoughtSignature": "+/8="}, False),
    ],
)
def test_echoed_values_are_compared_by_value(part: Document, same: bool) -> None:
    assert (echoed_values([content(part)]) == echoed_values([content({**CALL, "thoughtSignature": "+/8="})])) is same


def test_server_tool_parts_are_echoed_and_text_is_not() -> None:
    assert echoed_values([content("a", USED, GOT)]) == echoed_values(
        [content({"tool_call": USED["toolCall"]}, GOT, "b")]
    )
    assert echoed_values([content(USED, GOT)]) != echoed_values([content(USED)]) != echoed_values([content()])


@pytest.mark.parametrize(
    ("contents", "ordinary", "lead"),
    [
        ([content(ANSWER, ANSWER)], False, True),
        ([content(ANSWER, "a")], True, True),
        ([content("a", ANSWER)], True, False),
        ([content("a"), content(ANSWER)], True, False),
        ([], False, True),
    ],
)
def test_user_content_is_anything_but_responses(contents: list[Document], ordinary: bool, lead: bool) -> None:
    assert (has_user_content(contents), responses_lead(contents)) == (ordinary, lead)


@pytest.mark.parametrize(
    ("given", "options", "texts"),
    [
        (content("a", {**CALL, "thoughtSignature": "s"}), {}, ["a", '[Called f with {"a":1}]']),
        (content(ANSWER, "a"), {}, ['[f returned {"r":1}]', "a"]),
        (content(USED, GOT), {}, ['[Used T with {"q":1}]', '[T returned {"r":2}]']),
        (content(USED, CALL), {"calls": False}, ['[Used T with {"q":1}]', CALL]),
        (content(USED, CALL), {"server": False}, [USED, '[Called f with {"a":1}]']),
        (content({"function_call": {"name": "g"}}), {}, ["[Called g with {}]"]),
        (content("a", USED, ANSWER), {"calls": False}, [ANSWER, "a", '[Used T with {"q":1}]']),
    ],
)
def test_calls_and_responses_as_text(given: Document, options: Any, texts: list[Any]) -> None:
    before = str(given)
    assert as_text(given, **options)["parts"] == content(*texts)["parts"]
    assert str(given) == before


@pytest.mark.parametrize("role", ["model", "function", "user"])
def test_responses_as_text_have_the_role_user(role: str) -> None:
    assert as_text({**content(ANSWER, "a"), "role": role})["role"] == "user"
    assert as_text({**content(CALL, "a"), "role": role})["role"] == role
    assert as_text({**content(USED, ANSWER), "role": role}, calls=False)["role"] == role


def test_a_content_without_calls_is_the_same_object() -> None:
    for parts in (content("a"), content(), content(CALL, ANSWER)):
        assert as_text(parts, calls=False) is parts
    assert as_text({"role": "user"}) == {"role": "user"}


@pytest.mark.parametrize(
    ("result", "error", "response"),
    [
        ({"a": 1}, None, {"a": 1}),
        ({}, None, {}),
        (' {"a": 1}', None, {"a": 1}),
        ("{not json", None, {"result": "{not json"}),
        ("[1]", None, {"result": "[1]"}),
        ("text", None, {"result": "text"}),
        ([1], None, {"result": [1]}),
        (None, None, {"result": None}),
        (0, None, {"result": 0}),
        (None, "broken", {"error": "broken"}),
        ({"a": 1}, "", {"error": ""}),
    ],
)
def test_a_result_as_a_response_object(result: Any, error: str | None, response: Document) -> None:
    assert response_of(result, error) == response
