"""Converts requests of chat completions to Gemini's form."""

import base64
from typing import Any

import pytest

from addon.core.dialects.chat_requests import translate
from addon.core.framing.documents import Malformed, decode, encode
from addon.core.history.request import parse

Json = dict[str, Any]


def gemini(*messages: Json, **more: Any) -> Any:
    return decode(translate(encode({"model": "m", "messages": messages, **more})).gemini)


def call(name: str, arguments: Any, call_id: str = "x", **more: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def signed(signature: str) -> Json:
    return {"extra_content": {"google": {"thought_signature": signature}}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "user", "content": 'a "b"'}, {"role": "user", "parts": [{"text": 'a "b"'}]}, id="words"),
        pytest.param({"role": "user", "content": None}, {"role": "user", "parts": []}, id="nothing"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"u": 1}}]},
            {
                "role": "user",
                "parts": [{"text": "a"}, {"contentPart": {"type": "image_url", "image_url": {"u": 1}}}],
            },
            id="media",
        ),
        pytest.param(
            {"role": "assistant", "content": "a"}, {"role": "model", "parts": [{"text": "a"}]}, id="an answer"
        ),
        pytest.param(
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            {"role": "model", "parts": [{"text": "a"}]},
            id="an answer in parts",
        ),
        pytest.param(
            {"role": "assistant", "content": "a", **signed("s")},
            {
                "role": "model",
                "parts": [{"text": "a", "thoughtSignature": "s"}],
                "message": signed("s"),
            },
            id="an answer that is signed",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": 1}', **signed("s"))]},
            {
                "role": "model",
                "parts": [{"functionCall": {"id": "x", "name": "f", "args": {"a": 1}}, "thoughtSignature": "s"}],
            },
            id="a call",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [call("f", ""), call("g", "no json", ""), call("h", "[1]", "z")]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"id": "x", "name": "f", "args": {}}},
                    {"functionCall": {"name": "g", "args": {"arguments": "no json"}}},
                    {"functionCall": {"id": "z", "name": "h", "args": {"arguments": "[1]"}}},
                ],
            },
            id="odd arguments",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [call("f", "{}")], "name": "n", **signed("s")},
            {
                "role": "model",
                "parts": [
                    {"text": "", "thoughtSignature": "s"},
                    {"functionCall": {"id": "x", "name": "f", "args": {}}},
                ],
                "message": signed("s") | {"name": "n"},
            },
            id="the message is signed, as older models have it",
        ),
    ],
)
def test_a_message_becomes_a_content(message: Json, expected: Json) -> None:
    assert gemini(message)["contents"] == [expected]


@pytest.mark.parametrize(
    ("content", "response"),
    [
        ("Noon", {"result": "Noon"}),
        ('{"a": 1}', {"a": 1}),
        ([{"type": "text", "text": '{"a":'}, {"type": "text", "text": " 1}"}], {"a": 1}),
        ("[1]", {"result": "[1]"}),
        (None, {"result": None}),
    ],
)
def test_a_tool_message_answers_the_call_of_its_id(content: Any, response: Json) -> None:
    asked = {"role": "assistant", "tool_calls": [call("f", "{}", "x"), call("g", "{}", "y")]}
    answer = {"role": "tool", "tool_call_id": "y", "content": content}
    (part,) = gemini({"role": "user", "content": "a"}, asked, answer)["contents"][2]["parts"]
    assert part["functionResponse"] == {"id": "y", "name": "g", "response": response, "content": content}


def test_a_tool_message_without_an_id_answers_by_its_name() -> None:
    asked = {"role": "assistant", "tool_calls": [call("f", "{}", "x"), call("g", "{}", "y")]}
    answer = {"role": "tool", "name": "g", "content": "Noon"}
    (part,) = gemini({"role": "user", "content": "a"}, asked, answer)["contents"][2]["parts"]
    assert part["functionResponse"] == {"name": "g", "response": {"result": "Noon"}, "content": "Noon"}


def test_the_system_s_messages_are_no_contents() -> None:
    source = translate(
        encode(
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "a"},
                    {"role": "developer", "content": "d"},
                    {"role": "user", "content": "b"},
                ]
            }
        )
    )
    assert source.origins == (1, 3)
    assert [decode(source.body[start:end])["content"] for start, end in source.messages] == ["s", "a", "d", "b"]
    spans = [span for turn in parse(source.gemini).history.turns for span in turn.spans]
    assert tuple(start for start, _ in spans) == source.contents


@pytest.mark.parametrize(
    ("choice", "calling"),
    [
        ("auto", {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ({"type": "function", "function": {"name": "f"}}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            {"mode": "VALIDATED", "allowedFunctionNames": ["f"]},
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            {"mode": "ANY", "allowedFunctionNames": ["f"]},
        ),
        ("anything", None),
        ({"type": "custom", "custom": {"name": "f"}}, None),
    ],
)
def test_the_choice_among_tools(choice: Any, calling: Json | None) -> None:
    config = gemini(tool_choice=choice)["toolConfig"]
    expected: Json = {"client": True}
    assert config == expected | ({} if calling is None else {"functionCallingConfig": calling})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {}),
        ({"n": 2}, {"generationConfig": {"candidateCount": 2}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"generationConfig": {"responseMimeType": "application/json"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            {"generationConfig": {"responseMimeType": "application/json"}},
        ),
        ({"modalities": ["text", "audio"]}, {"generationConfig": {"responseModalities": ["text", "audio"]}}),
        ({"extra_body": {"google": {"cached_content": "cachedContents/1"}}}, {"cachedContent": "cachedContents/1"}),
        ({"temperature": 1, "tools": None, "tool_choice": None, "functions": None}, {}),
    ],
)
def test_other_members_of_a_request(more: Json, expected: Json) -> None:
    assert gemini(**more) == {"contents": [], "model": "m", **expected}


def test_the_client_s_tools_are_known_by_name_and_place() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}},
        {"type": "other"},
        {"type": "function", "function": {"name": "g"}},
    ]
    declared = [one["functionDeclarations"][0] for one in gemini(tools=tools)["tools"]]
    assert declared == [{"name": "f", "client": 0}, {"name": "", "client": 1}, {"name": "g", "client": 2}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "Expected `object`"),
        (b"{", "truncated"),
        (b"{}", "no member 'messages'"),
        (b'{"messages":{}}', "Expected `array`"),
        (b'{"messages":["a"]}', "Expected `object`"),
        (b'{"messages":[{}]}', "role"),
        (b'{"messages":[{"role":"function","name":"f","content":"1"}]}', "'function' is not a known role"),
        (b'{"messages":[{"role":"user","content":["a"]}]}', "Expected `object`"),
        (b'{"messages":[{"role":"assistant","tool_calls":[{"type":"custom","custom":{"name":"f"}}]}]}', "is not a"),
        (b'{"messages":[],"functions":[{"name":"f"}]}', "before tools"),
        (b'{"messages":[],"function_call":"auto"}', "before tools"),
        (b'{"messages":[],"messages":[]}', "twice"),
    ],
)
def test_messages_without_a_gemini_form_are_malformed(body: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        translate(body)


def test_media_are_not_decoded() -> None:
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 64).decode()
    raw = b'{"type": "image_url",  "image_url": {"url": "%b"}}' % image.encode()
    body = b'{"messages":[{"role":"user","content":[%b]}]}' % raw
    assert raw in translate(body).gemini
