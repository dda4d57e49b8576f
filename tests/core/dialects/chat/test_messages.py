"""Converts rewritten requests back to bodies of chat completions."""

from typing import Any

import pytest

from addon.core.dialects.chat_requests import translate, write_body
from addon.core.framing.documents import decode, encode
from addon.core.history.request import Piece

Json = dict[str, Any]

HEAD = b'{ "model" : "m", "temperature":1.0, "later": {"a": [1,  2]},\n "messages": [ '
SYSTEM = b'{"role":"system" ,"content":"s"}'
USER = b'{"content": "a", "role":"user"}'
ASKED = (
    b'{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{ }"}}],"n":1}'
)
ANSWER = b'{"role":"tool","tool_call_id":"x","content":"1"}'
LAST = b'{"role":"user","content":[{"type":"text","text":"b"}]}'
TOOLS = (
    b'"tools":[{"type":"function","function":{"name":"f","strict":true}}, {"type":"function","function":{"name":"g"}}]'
)
BODY = HEAD + b" ,".join([SYSTEM, USER, ASKED, ANSWER, LAST]) + b" ]," + TOOLS + b',"tool_choice": "auto"}'


def pieces(body: bytes) -> list[tuple[int, int]]:
    """The spans of the Contents."""
    source = translate(body)
    stop = source.gemini.index(b'],"', source.contents[-1]) if b'],"' in source.gemini else len(source.gemini) - 2
    ends = [start - 1 for start in source.contents[1:]] + [stop]
    return list(zip(source.contents, ends, strict=True))


def call(name: str, arguments: str, call_id: str = "x", **more: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def signed(signature: str) -> Json:
    return {"extra_content": {"google": {"thought_signature": signature}}}


def model(*parts: Json, **more: Any) -> bytes:
    return encode({"role": "model", "parts": parts, **more})


def user(*parts: Json) -> bytes:
    return encode({"role": "user", "parts": parts})


def messages(body: bytes, contents: list[Piece]) -> Any:
    return decode(write_body(translate(body), {}, contents))["messages"]


def test_an_unchanged_body_is_the_same_object() -> None:
    assert write_body(translate(BODY), {}, None) is BODY
    assert write_body(translate(HEAD + b"]}"), {"tools": None, "toolConfig": None}, None) == HEAD + b"]}"


def test_a_member_is_replaced_however_its_key_is_written() -> None:
    body = rb'{"mess\u0061ges":[{"role":"user","content":"a"}],"to\u006fls":[],"toolChoice":"auto"}'
    tools = encode([{"functionDeclarations": [{"name": "f"}]}])
    sent = write_body(translate(body), {"tools": tools, "toolConfig": None}, [user({"text": "b"})])
    assert decode(sent) == {
        "messages": [{"role": "user", "content": "b"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    }


def test_unchanged_messages_keep_their_bytes() -> None:
    spans = pieces(BODY)
    whole = (spans[0][0], spans[-1][1])
    source = translate(BODY)
    sent = write_body(source, {}, [whole])
    assert b'"messages": [' + SYSTEM + b"," + b" ,".join([USER, ASKED, ANSWER, LAST]) + b"]" in sent
    assert sent.startswith(b'{"model" : "m","temperature":1.0,"later": {"a": [1,  2]},"messages": [')
    for at, message in enumerate([USER, ASKED, ANSWER, LAST]):
        assert b'"messages": [' + SYSTEM + b"," + message + b"]" in write_body(source, {}, [spans[at]])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(model({"text": "a"}), [{"role": "assistant", "content": "a"}], id="words"),
        pytest.param(
            model({"text": "a"}, {"text": "b", "thoughtSignature": "s"}, {"text": "t", "thought": True}),
            [{"role": "assistant", "content": "ab", **signed("s")}],
            id="signed words, and a thought",
        ),
        pytest.param(
            model({"functionCall": {"id": "x", "name": "f", "args": {"a": 1}}, "thoughtSignature": "s"}),
            [{"role": "assistant", "tool_calls": [call("f", '{"a":1}', **signed("s"))]}],
            id="a call",
        ),
        pytest.param(
            model({"text": "a"}, {"functionCall": {"name": "f"}}, {"functionCall": {"name": "g"}}),
            [
                {
                    "role": "assistant",
                    "content": "a",
                    "tool_calls": [call("f", "{}", "call_1"), call("g", "{}", "call_2")],
                }
            ],
            id="calls without ids are given some",
        ),
        pytest.param(
            model(
                {"functionCall": {"id": "x", "name": "f"}, "thoughtSignature": "skip_thought_signature_validator"},
                {"text": "", "thoughtSignature": "s"},
            ),
            [{"role": "assistant", "tool_calls": [call("f", "{}", **signed("s"))]}],
            id="a signature that came after its call",
        ),
        pytest.param(
            model({"text": "", "thoughtSignature": "s"}, {"functionCall": {"id": "x", "name": "f"}}),
            [{"role": "assistant", **signed("s"), "tool_calls": [call("f", "{}")]}],
            id="a signature of the whole message",
        ),
        pytest.param(
            model({"text": "a"}, {"text": "[Called f with {}]"}, message={"name": "n"}),
            [{"role": "assistant", "content": "a\n[Called f with {}]", "name": "n"}],
            id="a call that is told in words",
        ),
        pytest.param(
            model({"text": "a"}, {"contentPart": {"type": "refusal", "refusal": "no"}}),
            [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]}],
            id="other parts",
        ),
        pytest.param(
            user({"functionResponse": {"id": "x", "name": "f", "response": {"a": 1}}}, {"text": "b"}),
            [{"role": "tool", "tool_call_id": "x", "content": '{"a":1}'}, {"role": "user", "content": "b"}],
            id="an answer, and words behind it",
        ),
        pytest.param(
            user({"functionResponse": {"id": "x", "name": "f", "response": {"a": 1}, "content": "as it came"}}),
            [{"role": "tool", "tool_call_id": "x", "content": "as it came"}],
            id="the client's own answer",
        ),
        pytest.param(
            user({"text": "[f returned {}]"}, {"text": "[g returned {}]"}),
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "[f returned {}]"},
                        {"type": "text", "text": "[g returned {}]"},
                    ],
                }
            ],
            id="answers that are told in words",
        ),
    ],
)
def test_a_content_becomes_messages(content: bytes, expected: list[Json]) -> None:
    body = encode({"messages": [{"role": "user", "content": "a"}]})
    assert messages(body, [pieces(body)[0], content])[1:] == expected


def test_images_in_a_result_are_said_to_be_left_out() -> None:
    part = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}
    answer = {"functionResponse": {"id": "x", "name": "f", "response": {"a": 1}, "parts": [part]}}
    body = encode({"messages": [{"role": "user", "content": "a"}]})
    content = messages(body, [pieces(body)[0], model({"functionCall": {"name": "f"}}), user(answer)])[-1]["content"]
    assert decode(content.encode()) == {
        "a": 1,
        "omitted": "image/png (4 bytes): results are text alone in this API",
    }


def test_answers_find_calls_that_have_no_id() -> None:
    asked = model({"functionCall": {"name": "f"}}, {"functionCall": {"name": "g"}}, {"functionCall": {"name": "f"}})
    given = [{"functionResponse": {"name": name, "response": {"n": n}}} for n, name in enumerate("fgf")]
    body = encode({"messages": [{"role": "user", "content": "a"}]})
    sent = messages(body, [pieces(body)[0], asked, user(*given), asked, user(*given)])
    first, second = sent[1:5], sent[5:]
    assert [one["tool_call_id"] for one in first[1:]] == [one["id"] for one in first[0]["tool_calls"]]
    assert [one["tool_call_id"] for one in second[1:]] == [one["id"] for one in second[0]["tool_calls"]]
    assert not {one["tool_call_id"] for one in first[1:]} & {one["tool_call_id"] for one in second[1:]}


def test_an_added_answer_has_the_clients_id_of_its_call() -> None:
    spans = pieces(BODY)
    added = user({"functionResponse": {"name": "f", "response": {}}})
    assert messages(BODY, [spans[0], spans[1], added])[3]["tool_call_id"] == "x"


def test_the_system_s_messages_keep_their_places() -> None:
    roles = ["system", "user", "assistant", "system", "user", "developer"]
    body = encode({"messages": [{"role": role, "content": f"{n}"} for n, role in enumerate(roles)]})
    spans = pieces(body)
    sent = messages(body, [spans[0], model({"text": "new"}), user({"text": "more"}), spans[2]])
    assert [one["content"] for one in sent] == ["0", "1", "new", "more", "3", "4", "5"]
    sent = messages(body, [(spans[0][0], spans[2][1]), model({"text": "new"})])
    assert [one["content"] for one in sent] == ["0", "1", "2", "3", "4", "new", "5"]


TOOL = {"name": "h", "description": "d", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}


def sent(tools: Any = None, config: Any = None, body: bytes = BODY) -> Any:
    replaced = {"tools": tools and encode(tools), "toolConfig": config and encode(config)}
    return decode(write_body(translate(body), replaced, None))


@pytest.mark.parametrize(
    ("declaration", "parameters"),
    [
        (TOOL, {"type": "object", "properties": {"a": {"type": "string"}}}),
        ({"name": "h", "description": "d"}, {"type": "object", "properties": {}}),
        ({"name": "h", "description": "d", "parametersJsonSchema": {"$ref": "#/$defs/x"}}, {"$ref": "#/$defs/x"}),
    ],
)
def test_grafted_tools_are_written_in_openais_form(declaration: Json, parameters: Json) -> None:
    function = {"name": "h", "description": "d", "parameters": parameters}
    assert sent([{"functionDeclarations": [declaration]}])["tools"] == [{"type": "function", "function": function}]


def test_the_client_s_own_tools_keep_their_very_json() -> None:
    own = [
        {"functionDeclarations": [{"name": "g", "client": 1}]},
        {"functionDeclarations": [{"name": "f", "client": 0}]},
    ]
    tools = sent([*own, {"googleSearch": {}}, {"functionDeclarations": [TOOL]}])["tools"]
    assert [one["function"].get("strict") for one in tools] == [None, True, None]
    assert [one["function"]["name"] for one in tools] == ["g", "f", "h"]


def test_a_grafted_tool_is_not_taken_for_one_of_the_client_s_that_has_its_name() -> None:
    (tool,) = sent([{"functionDeclarations": [{**TOOL, "name": "f"}]}])["tools"]
    assert tool["function"]["description"] == "d"


def test_without_tools_the_body_has_no_tool_members() -> None:
    body = BODY[:-1] + b',"parallel_tool_calls":true}'
    assert sent(body=body).keys() == {"model", "temperature", "later", "messages"}


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"functionCallingConfig": {"mode": "AUTO"}}, "auto"),
        ({"functionCallingConfig": {"mode": "any"}}, "required"),
        ({"functionCallingConfig": {"mode": "NONE"}}, "none"),
        ({"functionCallingConfig": {"mode": "VALIDATED"}}, "auto"),
        (
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
            {"type": "function", "function": {"name": "f"}},
        ),
        (
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]}},
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": name}} for name in "fg"],
                },
            },
        ),
        (
            {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["f"]}},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        ),
        ({"retrievalConfig": {}}, None),
    ],
)
def test_the_choice_among_tools(config: Json, choice: Any) -> None:
    assert sent([{"functionDeclarations": [TOOL]}], config).get("tool_choice") == choice


@pytest.mark.parametrize(
    "choice",
    ["auto", "required", {"type": "function", "function": {"name": "f"}, "later": 1}, {"type": "custom", "x": 1}],
)
def test_the_clients_choice_stays_unless_replaced(choice: Any) -> None:
    body = encode({"messages": [], "tools": [], "tool_choice": choice})
    config = decode(translate(body).gemini)["toolConfig"]
    assert sent([{"functionDeclarations": [TOOL]}], config, body)["tool_choice"] == choice
    forbidden = {**config, "functionCallingConfig": {"mode": "NONE"}}
    assert sent([{"functionDeclarations": [TOOL]}], forbidden, body)["tool_choice"] == "none"
