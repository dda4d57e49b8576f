"""What the strict local Gemini accepts."""

from __future__ import annotations

import pytest

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Refused
from addon.fake_gemini.fields import read
from tests.fake_gemini.judged import (
    MODEL,
    SECOND,
    TIME,
    TOOLS,
    USER,
    Json,
    call,
    calling,
    content,
    declared,
    judge,
    replied,
    response,
)

ACCEPTED: list[tuple[str, str, str, Json]] = [
    (
        "single objects for lists",
        "gemini-3-flash",
        "developer",
        {"contents": {"parts": {"text": "hi"}}, "tools": TOOLS[0]},
    ),
    (
        "any format on Vertex",
        "gemini-3-flash",
        "vertex",
        declared(parameters={"type": "OBJECT", "properties": {"a": {"type": "STRING", "format": "email"}}}),
    ),
    (
        "no type on the developer API",
        "gemini-3-flash",
        "developer",
        declared(parameters={"properties": {"a": {"anyOf": [{"enum": ["x"]}], "nullable": True}}}),
    ),
    ("nulls", "gemini-3-flash", "developer", {"tools": None, "systemInstruction": None}),
    ("a lowercase mode", "gemini-3-flash", "developer", {"tools": TOOLS, **calling(mode="any")}),
    ("snake_case", "gemini-3-flash", "developer", {"tools": [{"function_declarations": [TIME]}]}),
    ("two parallel calls, the first one signed", "gemini-3-flash", "developer", {"contents": SECOND}),
    (
        "a run of model contents as one step",
        "gemini-3-flash",
        "developer",
        {
            "contents": [
                USER,
                replied(call()),
                replied(call("get_time", None)),
                content(response()),
                content(response("get_time")),
            ]
        },
    ),
    ("responses, then words", "gemini-3.5-flash", "developer", {"contents": [*SECOND, USER]}),
    (
        "role function before 3.5",
        "gemini-3-flash",
        "developer",
        {"contents": [*SECOND[:2], {**SECOND[2], "role": "function"}]},
    ),
    (
        "role model for responses on Code Assist",
        "gemini-3-flash",
        "vertex codeassist",
        {"contents": [*SECOND[:2], {**SECOND[2], "role": "model"}]},
    ),
    (
        "no signature in an earlier turn",
        "gemini-3-flash",
        "developer",
        {"contents": [USER, replied(call(signature=None)), content(response()), MODEL, USER]},
    ),
    (
        "no signature before Gemini 3",
        "gemini-2.5-flash",
        "developer",
        {"contents": [USER, replied(call(signature=None)), content(response())]},
    ),
    (
        "any name in a response before Gemini 3",
        "gemini-2.5-flash",
        "developer",
        {"contents": [USER, replied(call(signature=None)), content(response("call-1"))]},
    ),
    (
        "an empty text that carries a signature",
        "gemini-3-flash",
        "developer",
        {"contents": [USER, replied({"text": "", "thoughtSignature": signatures.sign_text()}), USER]},
    ),
    (
        "built-ins beside functions with the flag",
        "gemini-3-flash",
        "developer",
        {"tools": [*TOOLS, {"googleSearch": {}}], "toolConfig": {"includeServerSideToolInvocations": True}},
    ),
    ("a name of 128 characters on Vertex", "gemini-3-flash", "vertex", declared(name="a" * 128)),
    (
        "built-ins beside functions on Vertex, which has no flag",
        "gemini-3-flash",
        "vertex",
        {"tools": [*TOOLS, {"googleSearch": {}}]},
    ),
    (
        "functions beside JSON from Gemini 3 on",
        "gemini-3-flash",
        "developer",
        {"generationConfig": {"responseMimeType": "application/json"}},
    ),
]


@pytest.mark.parametrize(("model", "place", "body"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_accepts_what_the_service_accepts(model: str, place: str, body: Json) -> None:
    assert judge({"tools": TOOLS} | body, model, place) == 0


def test_a_continuation_is_the_same_request_with_whatever_budget() -> None:
    body: Json = {"tools": TOOLS, "contents": [USER], "generationConfig": {"maxOutputTokens": 10, "temperature": 1}}
    token = signatures.continuation_token(read(body, "GenerateContentRequest", frozenset({"developer"})), 3)
    url_safe = token.replace("+", "-").replace("/", "_").rstrip("=")
    for one in (token, url_safe):
        judge({**body, "continuationToken": one, "generationConfig": {"maxOutputTokens": 99, "temperature": 1}})
    changes: list[Json] = [{"contents": [USER, MODEL, USER]}, {"generationConfig": {"temperature": 0}}, {"tools": []}]
    for change in changes:
        with pytest.raises(Refused, match="for another request"):
            judge({**body, "continuationToken": token, **change})


def test_a_signature_in_the_url_safe_alphabet_is_the_same_signature() -> None:
    part = call()
    # enough signatures for both special characters to occur
    for _ in range(50):
        part = call()
        part["thoughtSignature"] = part["thoughtSignature"].replace("+", "-").replace("/", "_").rstrip("=")
        judge({"tools": TOOLS, "contents": [USER, replied(part), content(response())]})


@pytest.mark.parametrize(
    "dummy",
    [
        "skip_thought_signature_validator",
        "context_engineering_is_the_way_to_go",
        "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=",
    ],
)
def test_a_dummy_signature_is_accepted_but_counted(dummy: str) -> None:
    assert judge({"tools": TOOLS, "contents": [USER, replied(call(signature=dummy)), content(response())]}) == 1


def test_a_call_that_the_model_made_up_may_stay_in_history() -> None:
    ghost = {"name": "ghost", "args": {"city": "Paris"}}
    part = call("ghost", signatures.sign_call(ghost, declared=False))
    judge({"tools": TOOLS, "contents": [USER, replied(part), content(response("ghost"))]})
