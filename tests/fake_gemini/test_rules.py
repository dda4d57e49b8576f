"""What the strict local Gemini refuses, with the words of the service."""

from __future__ import annotations

import pytest

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Refused
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

ORDER_CALL = (
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
)
ORDER_RESPONSE = "Please ensure that function response turn comes immediately after a function call turn."
COUNT = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)
MISSING = "Function call is missing a thought_signature in functionCall parts."


DANGLING = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}
TITLED = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A", "title": "t"}}, "$defs": {"A": {}}}
REFUSED: list[tuple[str, Json, str]] = [
    ("no contents", {"contents": []}, "* GenerateContentRequest.contents: contents is not specified\n"),
    ("no parts", {"contents": [{"role": "user"}]}, "contents[0].parts: contents.parts must not be empty."),
    (
        "an empty part",
        {"contents": [content({})]},
        "* GenerateContentRequest.contents[0].parts[0].data: required oneof field 'data' must have one initialized "
        "field\n",
    ),
    ("an unknown role", {"contents": [content({"text": "x"}, role="system")]}, "Please use a valid role: user, model."),
    (
        "two kinds in one part",
        {"contents": [content({"text": "x", "functionCall": {"name": "f"}})]},
        "Invalid value at 'contents[0].parts[0]' (oneof), oneof field 'data' is already set. Cannot set 'functionCall'",
    ),
    (
        "a call without a name",
        {"contents": [USER, replied({"functionCall": {}})]},
        "contents[1].parts[0].function_call.name: Name cannot be empty.",
    ),
    (
        "a model turn at the end",
        {"contents": [USER, MODEL]},
        "Please ensure that single turn requests end with a user role",
    ),
    ("a call at the beginning", {"contents": [replied(call()), content(response())]}, ORDER_CALL),
    ("a call of the user's", {"contents": [content(call())]}, ORDER_CALL),
    ("a call and its response in one content", {"contents": [USER, replied(call(), response())]}, ORDER_RESPONSE),
    ("a response without a call", {"contents": [USER, MODEL, content(response())]}, ORDER_RESPONSE),
    ("a response at the beginning", {"contents": [content(response())]}, ORDER_RESPONSE),
    (
        "a response after the user's words",
        {"contents": [USER, replied(call()), content({"text": "x"}, response())]},
        ORDER_RESPONSE,
    ),
    ("a response as model", {"contents": [USER, replied(call()), replied(response())]}, ORDER_RESPONSE),
    ("words in place of the response", {"contents": [USER, replied(call()), USER]}, COUNT),
    ("a response too few", {"contents": [*SECOND[:2], content(response())]}, COUNT),
    ("a response too many", {"contents": [USER, replied(call()), content(response(), response())]}, COUNT),
    (
        "responses out of order",
        {"contents": [*SECOND[:2], content(response("get_time"), response())]},
        "in the order of the function call parts: expected `get_weather`, got `get_time`.",
    ),
    (
        "a response with another call's id",
        {"contents": [USER, replied(call(id="aaaaaaaa")), content(response(id="bbbbbbbb"))]},
        "expected `aaaaaaaa`, got `bbbbbbbb`.",
    ),
    ("no signature", {"contents": [USER, replied(call(signature=None)), content(response())]}, MISSING),
    (
        "a signature on the second call only",
        {"contents": [USER, replied(call(signature=None), call("get_time")), *SECOND[2:]]},
        "Additional data, function call `default_api:get_weather` , position 2.",
    ),
    (
        "no signature in the second step",
        {"contents": [USER, replied(call()), content(response()), replied(call(signature=None)), content(response())]},
        "position 4.",
    ),
    (
        "parallel calls taken apart into steps",
        {
            "contents": [
                USER,
                replied(call()),
                content(response()),
                replied(call("get_time", None)),
                content(response("get_time")),
            ]
        },
        MISSING,
    ),
    (
        "a signature lost before words of the user's that follow the response",
        {"contents": [USER, replied(call(signature=None)), content(response(), {"text": "go on"})]},
        MISSING,
    ),
    (
        "another call's signature",
        {"contents": [USER, replied(call(signature=signatures.sign_call({"name": "get_time"}))), content(response())]},
        "Corrupted thought signature.",
    ),
    (
        "the signature of the same call with other arguments",
        {
            "contents": [
                USER,
                replied(call(signature=signatures.sign_call({"name": "get_weather", "args": {"city": "Rome"}}))),
                content(response()),
            ]
        },
        "Corrupted thought signature.",
    ),
    (
        "a signature moved to a call with another id",
        {
            "contents": [
                USER,
                replied(
                    call(
                        signature=signatures.sign_call(
                            {"name": "get_weather", "args": {"city": "Paris"}, "id": "aaaaaaaa"}
                        ),
                        id="bbbbbbbb",
                    )
                ),
                content(response()),
            ]
        },
        "Corrupted thought signature.",
    ),
    (
        "a call's signature on text",
        {"contents": [USER, replied({"text": "x", "thoughtSignature": signatures.sign_call({"name": "f"})}), USER]},
        "Corrupted thought signature.",
    ),
    (
        "a signature on the response",
        {"contents": [USER, replied(call()), content({**response(), "thoughtSignature": signatures.sign_text()})]},
        "Corrupted thought signature.",
    ),
    (
        "a signature that is not base64",
        {"contents": [USER, replied(call(signature="default_signature")), content(response())]},
        "Invalid value at 'contents[1].parts[0].thought_signature' (TYPE_BYTES), Base64 decoding failed for "
        '"default_signature"',
    ),
    (
        "a call that is not declared",
        {"contents": [USER, replied(call("other")), content(response("other"))]},
        "Function call `other` in contents, position 2, is not declared in tools of this request.",
    ),
    (
        "calls without tools",
        {"contents": [USER, replied(call()), content(response())], "tools": []},
        "Function call `get_weather` in contents, position 2, is not declared",
    ),
    (
        "a built-in beside functions",
        {"tools": [*TOOLS, {"googleSearch": {}}]},
        "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function calling.",
    ),
    (
        "a cache and a system instruction",
        {"cachedContent": "cachedContents/x", "systemInstruction": {"parts": [{"text": "x"}]}, "tools": None},
        "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.",
    ),
    ("a cache and tools", {"cachedContent": "cachedContents/x"}, "CachedContent can not be used"),
    (
        "a cache and a toolConfig",
        {"cachedContent": "cachedContents/x", "tools": None, **calling(mode="AUTO")},
        "CachedContent can not be used",
    ),
    ("a name with a space", declared(name="get weather"), "function_declarations[0].name: Invalid function name."),
    ("a name that begins with a digit", declared(name="2x"), "Invalid function name. Must start with a letter"),
    ("a name of 65 characters", declared(name="a" * 65), "with a maximum length of 64."),
    (
        "a name twice",
        {"tools": [{"functionDeclarations": [TIME]}] * 2},
        "Duplicate function declaration found: get_time",
    ),
    (
        "513 declarations",
        {"tools": [{"functionDeclarations": [{"name": f"f{n}"} for n in range(513)]}]},
        "At most 512 function declarations are allowed; got 513.",
    ),
    (
        "both kinds of parameters",
        declared(parametersJsonSchema={"type": "object"}),
        "parameters and parameters_json_schema are mutually exclusive.",
    ),
    ("both kinds of response", declared(response={}, responseJsonSchema={}), "are mutually exclusive."),
    ("behavior", declared(behavior="NON_BLOCKING"), "only supported by BidiGenerateContent."),
    (
        "JSON Schema in parameters",
        declared(parameters={"type": "object", "$schema": "x"}),
        "Unknown name \"$schema\" at 'tools[0].function_declarations[0].parameters': Cannot find field.",
    ),
    (
        "additionalProperties under a property",
        declared(parameters={"type": "object", "properties": {"a": {"type": "object", "additionalProperties": False}}}),
        "Unknown name \"additionalProperties\" at 'tools[0].function_declarations[0].parameters.properties[0].value': "
        "Cannot find field.",
    ),
    (
        "a list of types",
        declared(parameters={"type": "object", "properties": {"a": {"type": ["string", "null"]}}}),
        "Unknown name \"type\" at 'tools[0].function_declarations[0].parameters.properties[0].value': Proto field "
        "is not repeating, cannot start list.",
    ),
    (
        "an enum of numbers",
        declared(parameters={"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}}),
        "Invalid value at 'tools[0].function_declarations[0].parameters.properties[0].value.enum[0]' (TYPE_STRING), 1",
    ),
    (
        "a type that does not exist",
        declared(parameters={"type": "tuple"}),
        "Invalid value at 'tools[0].function_declarations[0].parameters.type' "
        '(type.googleapis.com/google.ai.generativelanguage.v1beta.Type), "tuple"',
    ),
    ("parameters that are no object", declared(parameters={"type": "STRING"}), "schema should be of type OBJECT."),
    (
        "a format that is not known",
        declared(parameters={"type": "OBJECT", "properties": {"a": {"type": "STRING", "format": "email"}}}),
        "parameters.properties[a].format: only 'enum' and 'date-time' are supported for STRING type\n",
    ),
    (
        "a JSON Schema with a reference to nothing",
        {"tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": DANGLING}]}]},
        "reference to undefined schema at properties.a",
    ),
    (
        "a JSON Schema of the result with a reference to nothing",
        {"tools": [{"functionDeclarations": [{"name": "f", "responseJsonSchema": DANGLING}]}]},
        "reference to undefined schema at properties.a",
    ),
    (
        "an array without items",
        declared(parameters={"type": "object", "properties": {"a": {"type": "array"}}}),
        "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[a].items: missing field.\n",
    ),
    (
        "a required property that is not there",
        declared(parameters={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}),
        "parameters.required[0]: property is not defined",
    ),
    (
        "an empty enum value",
        declared(parameters={"type": "object", "properties": {"a": {"type": "string", "enum": [""]}}}),
        "parameters.properties[a].enum[0]: cannot be empty",
    ),
    (
        "an enum of integers",
        declared(parameters={"type": "object", "properties": {"a": {"type": "integer", "enum": ["1"]}}}),
        "parameters.properties[a].enum: only allowed for STRING type",
    ),
    (
        "mode ANY without functions",
        {"tools": [], **calling(mode="ANY")},
        "Function calling config is set without function_declarations.",
    ),
    (
        "mode VALIDATED without functions",
        {"tools": [], **calling(mode="VALIDATED")},
        "is set without function_declarations.",
    ),
    (
        "a mode that does not exist",
        calling(mode="SOME"),
        "Invalid value at 'tool_config.function_calling_config.mode' "
        '(type.googleapis.com/google.ai.generativelanguage.v1beta.FunctionCallingConfig.Mode), "SOME"',
    ),
    (
        "allowed names with AUTO",
        calling(mode="AUTO", allowedFunctionNames=["get_time"]),
        "allowed_function_names can only be set when the mode is ANY or VALIDATED; the mode is AUTO.",
    ),
    (
        "an allowed name that is not declared",
        calling(mode="ANY", allowedFunctionNames=["get_time", "nothing"]),
        "allowed_function_names holds `nothing`, which is not in function_declarations.",
    ),
    (
        "argument streaming on the developer API",
        calling(streamFunctionCallArguments=True),
        "Unknown name \"streamFunctionCallArguments\" at 'tool_config.function_calling_config': Cannot find field.",
    ),
    (
        "a schema of the output with a reference to nothing",
        {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": DANGLING}},
        "reference to undefined schema at properties.a",
    ),
    (
        "a schema without JSON output",
        {"generationConfig": {"responseSchema": {"type": "STRING"}}},
        "response_schema: only allowed when response_mime_type is 'application/json'",
    ),
    (
        "two response schemas",
        {
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseSchema": {"type": "STRING"},
                "responseJsonSchema": {},
            }
        },
        "response_schema and response_json_schema are mutually exclusive.",
    ),
    ("nine candidates", {"generationConfig": {"candidateCount": 9}}, "must be in the range [1, 8], got 9."),
    ("too hot", {"generationConfig": {"temperature": 3}}, "temperature must be in the range [0.0, 2.0]."),
    ("a made-up continuation", {"continuationToken": "abcd"}, "Invalid continuation token"),
]


@pytest.mark.parametrize(("body", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refuses_with_the_words_of_the_service(body: Json, message: str) -> None:
    with pytest.raises(Refused) as refused:
        judge({"tools": TOOLS} | body)
    assert message in refused.value.message
    assert refused.value.body()["error"]["status"] == "INVALID_ARGUMENT"


ELSEWHERE: list[tuple[str, str, str, Json, str]] = [
    (
        "functions beside JSON before Gemini 3",
        "gemini-2.5-flash",
        "developer",
        {"tools": TOOLS, "generationConfig": {"responseMimeType": "application/json"}},
        "Function calling with a response mime type: 'application/json' is unsupported",
    ),
    (
        "a built-in beside functions before Gemini 3",
        "gemini-2.5-flash",
        "developer",
        {"tools": [*TOOLS, {"codeExecution": {}}]},
        "Tool use with function calling is unsupported",
    ),
    (
        "a built-in beside functions before Gemini 3 on Vertex",
        "gemini-2.5-flash",
        "vertex",
        {"tools": [*TOOLS, {"googleSearch": {}}]},
        "Multiple tools are supported only when they are all search tools.",
    ),
    (
        "a name of 129 characters on Vertex",
        "gemini-3-flash",
        "vertex",
        declared(name="a" * 129),
        "with a maximum length of 128.",
    ),
    (
        "a name of 65 characters on Code Assist",
        "gemini-3-flash",
        "vertex codeassist",
        declared(name="a" * 65),
        "with a maximum length of 64.",
    ),
    (
        "the flag for built-ins before Gemini 3",
        "gemini-2.5-flash",
        "developer",
        {"toolConfig": {"includeServerSideToolInvocations": True}},
        "tool_config.include_server_side_tool_invocations is not supported by this model.",
    ),
    (
        "role function on the newest models",
        "gemini-3.5-flash",
        "developer",
        {"tools": TOOLS, "contents": [USER, replied(call()), content(response(), role="function")]},
        "Please use a valid role: user, model.",
    ),
    (
        "a signature lost in an earlier turn on the newest models",
        "gemini-3.5-flash",
        "developer",
        {"tools": TOOLS, "contents": [USER, replied(call(signature=None)), content(response()), MODEL, USER]},
        MISSING,
    ),
    (
        "a wrong signature on 3.7",
        "gemini-3.7-flash",
        "developer",
        {"tools": TOOLS, "contents": [USER, replied(call(signature="AAAA")), content(response())]},
        "Invalid thought signature.",
    ),
    (
        "a wrong signature on Vertex",
        "gemini-3-flash",
        "vertex",
        {"tools": TOOLS, "contents": [USER, replied(call(signature="AAAA")), content(response())]},
        "Unable to submit request because Thought signature is not valid..",
    ),
    (
        "an id on Vertex v1",
        "gemini-3-flash",
        "vertex vertex-v1",
        {"tools": TOOLS, "contents": [USER, replied(call(id="x")), content(response(id="x"))]},
        "Unknown name \"id\" at 'contents[1].parts[0].function_call': Cannot find field.",
    ),
    (
        "argument streaming without a stream",
        "gemini-3-flash",
        "vertex",
        {"tools": TOOLS, **calling(streamFunctionCallArguments=True)},
        "stream_function_call_arguments needs a streaming request.",
    ),
    (
        "fields beside anyOf on Vertex",
        "gemini-3-flash",
        "vertex",
        declared(
            parameters={
                "type": "OBJECT",
                "properties": {"a": {"type": "ARRAY", "items": {"anyOf": [{"type": "STRING"}], "nullable": True}}},
            }
        ),
        "Unable to submit request because `get_weather` functionDeclaration `parameters.a` schema specified other "
        "fields alongside any_of. When using any_of, it must be the only field set.",
    ),
    (
        "no type on Vertex",
        "gemini-3-flash",
        "vertex",
        declared(parameters={"type": "OBJECT", "properties": {"a": {"anyOf": [{"enum": ["x"]}]}}}),
        "`get_weather` functionDeclaration `parameters.a` schema didnt specify the schema type field.",
    ),
    (
        "no type of the whole on Vertex",
        "gemini-3-flash",
        "vertex",
        declared(parameters={"properties": {"a": {"type": "STRING"}}}),
        "`get_weather` functionDeclaration parameters schema should be of type OBJECT.",
    ),
    (
        "a title beside a reference on Vertex",
        "gemini-3-flash",
        "vertex",
        {"tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": TITLED}]}]},
        "was set alongside unsupported fields",
    ),
    ("no contents on Vertex", "gemini-3-flash", "vertex", {"contents": []}, "at least one contents field is required."),
    ("no parts on Vertex", "gemini-3-flash", "vertex", {"contents": [{}]}, "must include at least one parts field"),
    (
        "too hot on Vertex",
        "gemini-3-flash",
        "vertex",
        {"generationConfig": {"temperature": 1000}},
        "it has a temperature value of 1000 but the supported range is from 0 (inclusive) to 2.0001 (exclusive).",
    ),
    ("labels on the developer API", "gemini-3-flash", "developer", {"labels": {"a": "b"}}, 'Unknown name "labels"'),
    ("MCP servers on Vertex", "gemini-3-flash", "vertex", {"tools": [{"mcpServers": []}]}, 'Unknown name "mcpServers"'),
    (
        "responses out of order before Gemini 3",
        "gemini-2.5-flash",
        "developer",
        {"tools": TOOLS, "contents": [*SECOND[:2], content(response("get_time"), response())]},
        "expected `get_weather`, got `get_time`.",
    ),
]


@pytest.mark.parametrize(
    ("model", "place", "body", "message"), [row[1:] for row in ELSEWHERE], ids=[row[0] for row in ELSEWHERE]
)
def test_refuses_what_only_some_models_and_places_refuse(model: str, place: str, body: Json, message: str) -> None:
    with pytest.raises(Refused) as refused:
        judge(body, model, place)
    assert message in refused.value.message
