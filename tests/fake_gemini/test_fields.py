"""Proto JSON: canonical form, and the messages of refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from addon.fake_gemini.errors import Refused
from addon.fake_gemini.fields import decode_bytes, read

Json = dict[str, Any]
DEVELOPER = frozenset({"developer"})


def test_both_spellings_and_single_objects_come_out_in_one_form() -> None:
    given: Json = {
        "contents": {
            "parts": {"function_call": {"name": "f", "args": {"snake_case": None}}, "thought_signature": "AA"}
        },
        "tool_config": {"functionCallingConfig": {"mode": "any", "allowed_function_names": "f"}},
        "generation_config": {"max_output_tokens": "12", "seed": None},
    }
    before = copy.deepcopy(given)
    assert read(given, "GenerateContentRequest", DEVELOPER) == {
        "contents": [
            {"parts": [{"functionCall": {"name": "f", "args": {"snake_case": None}}, "thoughtSignature": "AA"}]}
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"maxOutputTokens": 12},
    }
    assert given == before


def test_the_user_s_own_objects_are_not_checked() -> None:
    user_data = {"any_key": {"anyKey": None, "any_key": [1]}}
    given = {
        "contents": [
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": user_data}}]},
            {"parts": [{"functionResponse": {"name": "f", "response": user_data}}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "f", "parametersJsonSchema": user_data},
                    {"name": "g", "parameters": {"properties": {"any_key": {}, "anyKey": {}}}},
                ]
            }
        ],
    }
    assert read(given, "GenerateContentRequest", DEVELOPER) == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "Invalid JSON payload received. Root element must be a message."),
        ({"x": 1}, 'Invalid JSON payload received. Unknown name "x": Cannot find field.'),
        ({"contents": [{"x": 1}]}, "Unknown name \"x\" at 'contents[0]': Cannot find field."),
        (
            {"systemInstruction": {"parts": [{"texts": "a"}]}},
            "Unknown name \"texts\" at 'system_instruction.parts[0]': Cannot find field.",
        ),
        (
            {"toolConfig": {}, "tool_config": {}},
            'Proto field "tool_config" has already been set by another spelling.',
        ),
        (
            {"contents": [{"parts": [{"functionCall": {"name": "f"}, "function_call": {"name": "f"}}]}]},
            "Proto field \"function_call\" at 'contents[0].parts[0]' has already been set by another spelling.",
        ),
        ({"contents": ["hi"]}, "Invalid value at 'contents[0]' "),
        ({"contents": [{"parts": [{"text": 1}]}]}, "Invalid value at 'contents[0].parts[0].text' (TYPE_STRING), 1"),
        (
            {"contents": [{"parts": [{"text": {}}]}]},
            "Invalid value at 'contents[0].parts[0]' (text), Starting an object on a scalar field",
        ),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": "ok"}}]}]},
            "Invalid value at 'contents[0].parts[0].function_response.response' "
            '(type.googleapis.com/google.protobuf.Struct), "ok"',
        ),
        (
            {"systemInstruction": [{"parts": []}]},
            'Unknown name "systemInstruction": Proto field is not repeating, cannot start list.',
        ),
        ({"generationConfig": {"topP": "a lot"}}, "Invalid value at 'generation_config.top_p' (TYPE_DOUBLE)"),
        ({"generationConfig": {"seed": 1.5}}, "Invalid value at 'generation_config.seed' (TYPE_INT32), 1.5"),
        ({"contents": [{"parts": [{"thought": "yes"}]}]}, "(TYPE_BOOL)"),
    ],
)
def test_refuses_what_the_message_does_not_know(given: Any, message: str) -> None:
    with pytest.raises(Refused) as refused:
        read(given, "GenerateContentRequest", DEVELOPER)
    assert message in refused.value.message


def test_every_violation_is_told_with_its_field() -> None:
    with pytest.raises(Refused) as refused:
        read({"generation_config": {"response_format_": 1}, "response_schema": {}}, "GenerateContentRequest", DEVELOPER)
    first = (
        "Invalid JSON payload received. Unknown name \"response_format_\" at 'generation_config': Cannot find field."
    )
    second = 'Invalid JSON payload received. Unknown name "response_schema": Cannot find field.'
    assert refused.value.body() == {
        "error": {
            "code": 400,
            "message": f"{first}\n{second}",
            "status": "INVALID_ARGUMENT",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": [
                        {"field": "generation_config", "description": first},
                        {"description": second},
                    ],
                }
            ],
        }
    }


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"toolConfig": {"includeServerSideToolInvocations": True}}, "includeServerSideToolInvocations"),
        ({"contents": [{"parts": [{"toolCall": {"id": "1"}}]}]}, "toolCall"),
        ({"contents": [{"parts": [{"toolResponse": {"id": "1"}}]}]}, "toolResponse"),
    ],
)
def test_vertex_does_not_know_invocations_of_its_tools(given: Any, field: str) -> None:
    with pytest.raises(Refused, match=f'Unknown name "{field}"'):
        read(given, "GenerateContentRequest", frozenset({"vertex"}))
    for place in (DEVELOPER, frozenset({"vertex", "codeassist"})):
        assert read(given, "GenerateContentRequest", place) == given


def test_code_assist_paths_begin_with_request() -> None:
    with pytest.raises(Refused, match=r"at 'request\.contents\[0\]'"):
        read({"request": {"contents": [{"x": 1}]}}, "CodeAssistRequest", frozenset({"vertex", "codeassist"}))


@pytest.mark.parametrize(
    ("text", "expected"), [("-_8=", b"\xfb\xff"), ("+/8", b"\xfb\xff"), ("AAAAA", None), ("a b=", None)]
)
def test_bytes_are_base64_in_either_alphabet(text: str, expected: bytes | None) -> None:
    assert decode_bytes(text) == expected
