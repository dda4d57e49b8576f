"""Tools in every form that users write: their result, or their refusal with the position."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.tools.positions import BadTool
from addon.core.tools.tool_forms import Tools, normalise

JSON_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GEMINI = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}
FULL = {**JSON_SCHEMA, "additionalProperties": False}
PLAIN = {"name": "f", "description": "d", "parameters": GEMINI}

# one tool as given → (declarations, built-in tools)
TOOLS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a Gemini Tool": ({"functionDeclarations": [PLAIN, {"name": "g"}]}, [PLAIN, {"name": "g"}], []),
    "a Gemini Tool in snake_case": (
        {"function_declarations": [{"name": "f", "parameters_json_schema": FULL}]},
        [{"name": "f", "parametersJsonSchema": FULL}],
        [],
    ),
    "a Gemini Tool with one declaration that is no list": ({"functionDeclarations": PLAIN}, [PLAIN], []),
    "a built-in tool": ({"googleSearch": {}}, [], [{"googleSearch": {}}]),
    "a built-in tool in snake_case": ({"url_context": {}}, [], [{"urlContext": {}}]),
    "a built-in tool with its own fields": (
        {"fileSearch": {"file_search_store_names": ["s"]}},
        [],
        [{"fileSearch": {"file_search_store_names": ["s"]}}],
    ),
    "MCP servers": ({"mcpServers": [{"name": "s"}]}, [], [{"mcpServers": [{"name": "s"}]}]),
    "a Gemini Tool of both, unset ones left out": (
        {"functionDeclarations": [PLAIN], "codeExecution": {}, "googleSearch": {}, "retrieval": None},
        [PLAIN],
        [{"codeExecution": {}}, {"googleSearch": {}}],
    ),
    "OpenAI chat": (
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": JSON_SCHEMA, "strict": True}},
        [PLAIN],
        [],
    ),
    "OpenAI chat with a schema beyond the subset": (
        {"type": "function", "function": {"name": "f", "parameters": FULL}},
        [{"name": "f", "parametersJsonSchema": FULL}],
        [],
    ),
    "OpenAI Responses": (
        {"type": "function", "name": "f", "description": "d", "parameters": JSON_SCHEMA, "strict": False},
        [PLAIN],
        [],
    ),
    "OpenAI Responses with unset fields": (
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None},
        [{"name": "f"}],
        [],
    ),
    "MCP": ({"name": "f", "description": "d", "inputSchema": JSON_SCHEMA}, [PLAIN], []),
    "MCP with all that it may have": (
        {
            "name": "f",
            "title": "F",
            "description": "d",
            "inputSchema": FULL,
            "outputSchema": JSON_SCHEMA,
            "annotations": {"readOnlyHint": True},
            "icons": [],
            "execution": {},
            "_meta": {"x": 1},
        },
        [{"name": "f", "description": "d", "parametersJsonSchema": FULL, "response": GEMINI}],
        [],
    ),
    "MCP without arguments": ({"name": "f", "inputSchema": {"type": "object", "properties": {}}}, [{"name": "f"}], []),
    "MCP with $schema": (
        {"name": "f", "inputSchema": {**JSON_SCHEMA, "$schema": "x"}},
        [{"name": "f", "parametersJsonSchema": {**JSON_SCHEMA, "$schema": "x"}}],
        [],
    ),
    "a bare declaration": (PLAIN, [PLAIN], []),
    "a bare declaration of a name alone": ({"name": "f"}, [{"name": "f"}], []),
    "a name with all that is allowed": ({"name": "_a.b:c-9"}, [{"name": "_a.b:c-9"}], []),
    "a name of 128 characters": ({"name": "n" * 128}, [{"name": "n" * 128}], []),
    "parameters in small letters": ({"name": "f", "description": "d", "parameters": JSON_SCHEMA}, [PLAIN], []),
    "parameters that are JSON Schema": (
        {"name": "f", "parameters": FULL},
        [{"name": "f", "parametersJsonSchema": FULL}],
        [],
    ),
    "parameters in capitals and small letters": (
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "STRING"}}}},
        [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}],
        [],
    ),
    "parameters in snake_case": (
        {"name": "f", "parameters": {"type": "OBJECT", "properties": {"a_b": {"any_of": [{"type": "STRING"}]}}}},
        [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a_b": {"anyOf": [{"type": "STRING"}]}}}}],
        [],
    ),
    "parameters that say nothing": (
        {"name": "f", "parameters": {"type": "OBJECT", "properties": {}, "required": []}},
        [{"name": "f"}],
        [],
    ),
    "a JSON Schema that was asked for stays as it is": (
        {"name": "f", "parametersJsonSchema": JSON_SCHEMA},
        [{"name": "f", "parametersJsonSchema": JSON_SCHEMA}],
        [],
    ),
    "… an empty one too": (
        {"name": "f", "parametersJsonSchema": {"type": "object", "properties": {}}},
        [{"name": "f", "parametersJsonSchema": {"type": "object", "properties": {}}}],
        [],
    ),
    "response schemas": (
        {"name": "f", "response": {"type": "string"}},
        [{"name": "f", "response": {"type": "STRING"}}],
        [],
    ),
    "a response that is JSON Schema": (
        {"name": "f", "response_json_schema": FULL, "behavior": None},
        [{"name": "f", "responseJsonSchema": FULL}],
        [],
    ),
    "arguments named like keywords": (
        {
            "name": "f",
            "inputSchema": {
                "type": "object",
                "properties": {"type": {"type": "string"}, "min_items": {"type": "integer"}},
            },
        },
        [
            {
                "name": "f",
                "parameters": {
                    "type": "OBJECT",
                    "properties": {"type": {"type": "STRING"}, "min_items": {"type": "INTEGER"}},
                },
            }
        ],
        [],
    ),
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_in_any_form_becomes_gemini_s(name: str) -> None:
    tool, declarations, builtins = TOOLS[name]
    document = {"tools": [tool]}
    before = copy.deepcopy(document)
    assert normalise(document) == Tools(declarations, builtins, None)
    assert document == before
    result = {"tools": [{"functionDeclarations": declarations}, *builtins]}
    assert normalise(result) == Tools(declarations, builtins, None)


def test_forms_may_be_mixed_and_keep_their_order() -> None:
    document = {
        "tools": [
            {"name": "a"},
            {"googleSearch": {}},
            {"type": "function", "name": "b"},
            {"functionDeclarations": [{"name": "c"}], "codeExecution": {}},
            {"name": "d", "inputSchema": {}},
        ]
    }
    assert normalise(document) == Tools(
        [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}],
        [{"googleSearch": {}}, {"codeExecution": {}}],
        None,
    )


@pytest.mark.parametrize(
    ("tools", "count"), [([], 0), ({"name": "f"}, 1), ([{"name": f"f{i}"} for i in range(512)], 512)]
)
def test_no_tool_one_tool_and_the_maximum_number(tools: Any, count: int) -> None:
    assert len(normalise({"tools": tools}).declarations) == count


def calling(**fields: Any) -> dict[str, Any]:
    return {"functionCallingConfig": fields}


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "no choice": ({}, None),
    "an unset choice": ({"tool_choice": None, "tool_config": None}, None),
    "auto": ({"tool_choice": "auto"}, calling(mode="AUTO")),
    "required": ({"tool_choice": "required"}, calling(mode="ANY")),
    "none": ({"tool_choice": "none"}, calling(mode="NONE")),
    "a function, OpenAI chat": (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        calling(mode="ANY", allowedFunctionNames=["f"]),
    ),
    "a function, OpenAI Responses": (
        {"tool_choice": {"type": "function", "name": "f"}},
        calling(mode="ANY", allowedFunctionNames=["f"]),
    ),
    "some tools, one of which must be called": (
        {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}},
        calling(mode="ANY", allowedFunctionNames=["f"]),
    ),
    "some tools, one of which may be called": (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
        calling(mode="VALIDATED", allowedFunctionNames=["f"]),
    ),
    "some tools as OpenAI chat has them": (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            }
        },
        calling(mode="VALIDATED", allowedFunctionNames=["f"]),
    ),
    "an empty config": ({"toolConfig": {}}, {}),
    "camelCase": (
        {"toolConfig": calling(mode="ANY", allowedFunctionNames=["f"])},
        calling(mode="ANY", allowedFunctionNames=["f"]),
    ),
    "snake_case and small letters": (
        {"tool_config": {"function_calling_config": {"mode": "any", "allowed_function_names": ["g", "f"]}}},
        calling(mode="ANY", allowedFunctionNames=["g", "f"]),
    ),
    "validated": (
        {"tool_config": calling(mode="VALIDATED", allowedFunctionNames=["f"])},
        calling(mode="VALIDATED", allowedFunctionNames=["f"]),
    ),
    "nothing allowed is nothing said": (
        {"tool_config": calling(allowedFunctionNames=[])},
        calling(allowedFunctionNames=[]),
    ),
    "all the rest": (
        {
            "tool_config": {
                "functionCallingConfig": {"stream_function_call_arguments": True},
                "retrieval_config": {"lat_lng": {"latitude": 50.1, "longitude": 14.4}, "language_code": "cs"},
                "include_server_side_tool_invocations": True,
            }
        },
        {
            "functionCallingConfig": {"streamFunctionCallArguments": True},
            "retrievalConfig": {"latLng": {"latitude": 50.1, "longitude": 14.4}, "languageCode": "cs"},
            "includeServerSideToolInvocations": True,
        },
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_becomes_a_tool_config(name: str) -> None:
    given_, expected = CHOICES[name]
    assert normalise({"tools": [{"name": "f"}, {"name": "g"}], **given_}).tool_config == expected


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"items": value}
    return value


RUN: dict[str, Any] = {
    "executor": {"type": "http", "url": "https://tools.example/run?v=1", "headers": {"X-Key": "s3cret"}},
    "approval": True,
    "after": ["g"],
    "idempotent": True,
    "cache_ttl": 0,
    "timeout": 2.5,
    "retries": 0,
}


@pytest.mark.parametrize(
    "tool",
    [
        {"functionDeclarations": [{"name": "f", **RUN}]},
        {"type": "function", "function": {"name": "f"}, **RUN},
        {"type": "function", "name": "f", **RUN},
        {"name": "f", "inputSchema": {}, **RUN},
        {"name": "f", **RUN},
    ],
    ids=["Gemini", "OpenAI chat", "OpenAI Responses", "MCP", "bare"],
)
def test_rules_are_returned_separately_for_every_form(tool: Any) -> None:
    assert normalise({"tools": [tool, {"name": "g"}]}) == Tools([{"name": "f"}, {"name": "g"}], [], None, {"f": RUN})


def test_tools_come_after_others_but_never_in_a_cycle() -> None:
    tools: list[dict[str, Any]] = [{"name": "a", "after": ["b", "c"]}, {"name": "b", "after": ["c"]}, {"name": "c"}]
    assert normalise({"tools": tools}).rules == {"a": {"after": ["b", "c"]}, "b": {"after": ["c"]}}
    tools[2]["after"] = ["a"]
    with pytest.raises(BadTool, match=r"tools\[\d\].after forms a cycle") as caught:
        normalise({"tools": tools})
    assert caught.value.tool in ("a", "b", "c")


CIRCLE = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}

# one tool as given → (the tool's label, the field, a word of the message)
BAD_TOOLS: dict[str, tuple[Any, str, str, str]] = {
    "no object": ("f", "0", "tools[0]", "must be an object"),
    "of no known shape": ({"description": "d"}, "0", "tools[0]", "no known form of a tool"),
    "an empty object": ({}, "0", "tools[0]", "no known form of a tool"),
    "no name": ({"functionDeclarations": [{}]}, "0", "tools[0].functionDeclarations[0].name", "missing"),
    "a name that is no string": ({"name": 7}, "0", "tools[0].name", "7"),
    "a name with a space": ({"name": "get weather"}, "get weather", "tools[0].name", "'get weather'"),
    "a name that starts with a digit": ({"name": "1f"}, "1f", "tools[0].name", "letter"),
    "a name that ends with a line end": ({"name": "f\n"}, "f\n", "tools[0].name", "letter"),
    "an empty name": ({"name": ""}, "0", "tools[0].name", "''"),
    "a name of 129 characters": ({"name": "n" * 129}, "0", "tools[0].name", "127"),
    "a description that is no string": ({"name": "f", "description": 1}, "f", "tools[0].description", "string"),
    "an unknown key": ({"name": "f", "colour": 1}, "f", "tools[0].colour", "known fields are name, description"),
    "a rule in camelCase": ({"name": "f", "cacheTtl": 3}, "f", "tools[0].cacheTtl", "cache_ttl"),
    "an executor of a whole Tool": (
        {"functionDeclarations": [], "executor": {"type": "worker"}},
        "0",
        "tools[0].executor",
        "not known",
    ),
    "a rule inside of OpenAI's function": (
        {"type": "function", "function": {"name": "f", "timeout": 3}},
        "f",
        "tools[0].function.timeout",
        "not known",
    ),
    "a bad rule beside OpenAI's function": (
        {"type": "function", "function": {"name": "f"}, "timeout": 0},
        "f",
        "tools[0].timeout",
        "above 0",
    ),
    "a bad rule of a declaration in a Tool": (
        {"functionDeclarations": [{"name": "e"}, {"name": "f", "executor": {"type": "http", "url": "x"}}]},
        "f",
        "tools[0].functionDeclarations[1].executor.url",
        "https://",
    ),
    "a bad rule of an MCP tool": (
        {"name": "f", "inputSchema": {}, "approval": 1},
        "f",
        "tools[0].approval",
        "true or false",
    ),
    "a tool after one that is not there": ({"name": "f", "after": ["g"]}, "f", "tools[0].after", "'g'"),
    "a tool after itself": ({"name": "f", "after": ["f"]}, "f", "tools[0].after", "f → f"),
    "annotations without an inputSchema": ({"name": "f", "annotations": {}}, "f", "tools[0].annotations", "not known"),
    "behavior": ({"name": "f", "behavior": "SOMETIMES"}, "f", "tools[0].behavior", "NON_BLOCKING"),
    "scheduling": (
        {"name": "f", "behavior": "NON_BLOCKING", "scheduling": "NOW"},
        *("f", "tools[0].scheduling", "WHEN_IDLE"),
    ),
    "scheduling of a call that is waited for": (
        {"name": "f", "scheduling": "SILENT"},
        *("f", "tools[0].scheduling", "NON_BLOCKING"),
    ),
    "both kinds of parameters": (
        {"name": "f", "parameters": GEMINI, "parametersJsonSchema": FULL},
        "f",
        "tools[0].parametersJsonSchema",
        "together with parameters",
    ),
    "both kinds of response": (
        {"name": "f", "response": GEMINI, "responseJsonSchema": FULL},
        "f",
        "tools[0].responseJsonSchema",
        "together with response",
    ),
    "both spellings": (
        {"name": "f", "parametersJsonSchema": FULL, "parameters_json_schema": FULL},
        "f",
        "tools[0].parameters_json_schema",
        "other spelling",
    ),
    "both spellings of a tool": (
        {"functionDeclarations": [], "function_declarations": []},
        "0",
        "tools[0].function_declarations",
        "other spelling",
    ),
    "parameters that are no object": ({"name": "f", "parameters": []}, "f", "tools[0].parameters", "must be an object"),
    "parameters that describe anything but an object": (
        {"name": "f", "parameters": {"type": ["string", "null"]}},
        "f",
        "tools[0].parameters.type",
        "'string'",
    ),
    "a reference to nothing": (
        {"name": "f", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}},
        "f",
        "tools[0].inputSchema.properties.a.$ref",
        "'#/$defs/A', which names nothing",
    ),
    "a reference to nothing in a schema of results": (
        {"name": "f", "responseJsonSchema": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
        "f",
        "tools[0].responseJsonSchema.items.$ref",
        "names nothing",
    ),
    "a cycle of references": (
        {"name": "f", "parametersJsonSchema": CIRCLE},
        "f",
        "tools[0].parametersJsonSchema.properties.a",
        "make one of the properties in the cycle optional",
    ),
    "parameters that describe a string": (
        {"name": "f", "parameters": {"type": "string"}},
        "f",
        "tools[0].parameters.type",
        "'string'",
    ),
    "a JSON Schema that describes a list": (
        {"name": "f", "parametersJsonSchema": {"type": "array"}},
        "f",
        "tools[0].parametersJsonSchema.type",
        "'array'",
    ),
    "a Gemini Schema with a field beyond the subset": (
        {"name": "f", "parameters": {**GEMINI, "additionalProperties": False}},
        "f",
        "tools[0].parameters.additionalProperties",
        "propertyOrdering",
    ),
    "… deeper": (
        {
            "functionDeclarations": [
                {"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING", "const": 1}}}}
            ]
        },
        "f",
        "tools[0].functionDeclarations[0].parameters.properties.a.const",
        "no field",
    ),
    "a Gemini Schema with a type list": (
        {"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": ["STRING"]}}}},
        "f",
        "tools[0].parameters.properties.a.type",
        "STRING, NUMBER",
    ),
    "an unknown key of a Gemini Tool": ({"googleSearch": {}, "magic": {}}, "0", "tools[0].magic", "not known"),
    "declarations that are no list": (
        {"functionDeclarations": "f"},
        "0",
        "tools[0].functionDeclarations",
        "must be a list",
    ),
    "a declaration that is no object": (
        {"functionDeclarations": ["f"]},
        "0",
        "tools[0].functionDeclarations[0]",
        "must be an object",
    ),
    "a built-in tool that is no object": ({"googleSearch": True}, "0", "tools[0].googleSearch", "such as {}"),
    "MCP servers that are no list": ({"mcpServers": {}}, "0", "tools[0].mcpServers", "must be a list"),
    "an OpenAI tool of another type": ({"type": "web_search"}, "0", "tools[0].type", "'web_search'"),
    "an OpenAI chat tool without a type": ({"function": {"name": "f"}}, "0", "tools[0].type", "'function'"),
    "an OpenAI chat tool without a function": (
        {"type": "function", "function": None},
        "0",
        "tools[0].function",
        "must be an object",
    ),
    "an OpenAI chat tool with bad parameters": (
        {"type": "function", "function": {"name": "f", "parameters": "x"}},
        "f",
        "tools[0].function.parameters",
        "must be an object",
    ),
    "an OpenAI chat tool with a key outside": (
        {"type": "function", "function": {"name": "f"}, "name": "f"},
        "f",
        "tools[0].name",
        "not known",
    ),
    "an OpenAI Responses tool with an unknown key": (
        {"type": "function", "name": "f", "inputSchema": {}},
        "f",
        "tools[0].inputSchema",
        "not known",
    ),
    "strict that is no boolean": (
        {"type": "function", "name": "f", "strict": 1},
        "f",
        "tools[0].strict",
        "true or false",
    ),
    "an MCP tool with an unknown key": (
        {"name": "f", "inputSchema": {}, "server": 1},
        "f",
        "tools[0].server",
        "not known",
    ),
    "an MCP tool that takes a string": (
        {"name": "f", "inputSchema": {"type": "string"}},
        "f",
        "tools[0].inputSchema.type",
        "'string'",
    ),
    "nested too deep": ({"name": "f", "parameters": deep(5_000)}, "0", "tools[0]", "deeper than 100"),
}


@pytest.mark.parametrize("name", BAD_TOOLS)
def test_a_bad_tool_is_refused_with_its_name_and_field(name: str) -> None:
    tool, label, field, word = BAD_TOOLS[name]
    with pytest.raises(BadTool) as caught:
        normalise({"tools": [tool]})
    assert (caught.value.tool, caught.value.field) == (label, field)
    assert word in caught.value.message
    assert str(caught.value) == f"{field} {caught.value.message}"
    assert len(str(caught.value)) < 600


# the document → (the field, a word of the message); it is one tool's fault in none of them but the duplicates
BAD_DOCUMENTS: dict[str, tuple[Any, str, str]] = {
    "no object": ([], "", "must be an object"),
    "nothing": ({}, "tools", "missing"),
    "unset tools": ({"tools": None}, "tools", "missing"),
    "tools that are no list": ({"tools": "f"}, "tools", "must be a list"),
    "an unknown key": ({"tools": [], "policy": {}}, "policy", "not known"),
    "both spellings": ({"tools": [], "toolConfig": {}, "tool_config": {}}, "tool_config", "other spelling"),
    "both kinds of choice": ({"tools": [], "toolConfig": {}, "tool_choice": "auto"}, "tool_choice", "together with"),
    "a name twice": ({"tools": [{"name": "f"}, {"name": "f"}]}, "tools[1].name", "tools[0]"),
    "a name twice in two forms": (
        {"tools": [{"functionDeclarations": [{"name": "f"}]}, {"type": "function", "name": "f"}]},
        "tools[1].name",
        "tools[0].functionDeclarations[0]",
    ),
    "too many": ({"tools": [{"name": f"f{i}"} for i in range(513)]}, "tools", "513"),
    "an unknown choice": ({"tools": [], "tool_choice": "any"}, "tool_choice", '"required"'),
    "a choice of another kind": ({"tools": [], "tool_choice": {"type": "mcp"}}, "tool_choice", "function"),
    "allowed tools without a mode": (
        {"tools": [], "tool_choice": {"type": "allowed_tools", "tools": []}},
        "tool_choice.mode",
        "'required'",
    ),
    "allowed tools with a mode that is none": (
        {"tools": [], "tool_choice": {"type": "allowed_tools", "mode": ["auto"], "tools": []}},
        "tool_choice.mode",
        "'required'",
    ),
    "no allowed tools": (
        {"tools": [], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        "tool_choice.tools",
        "one or more",
    ),
    "an allowed tool of another kind": (
        {"tools": [], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
        "tool_choice.tools[0]",
        '"function"',
    ),
    "an allowed tool that is not declared": (
        {
            "tools": [{"name": "f"}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
        },
        "tool_choice",
        "'g'",
    ),
    "a choice without a name": ({"tools": [], "tool_choice": {"type": "function"}}, "tool_choice", "name"),
    "a choice of two names": (
        {"tools": [{"name": "f"}], "tool_choice": {"type": "function", "name": "f", "function": {"name": "f"}}},
        "tool_choice",
        "name",
    ),
    "a choice of what is not declared": (
        {"tools": [{"name": "f"}], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice",
        "'g'",
    ),
    "a choice among nothing": ({"tools": [], "tool_choice": "required"}, "tool_choice", "no function"),
    "a config that is no object": ({"tools": [], "tool_config": []}, "toolConfig", "must be an object"),
    "an unknown field": ({"tools": [], "tool_config": {"mode": "ANY"}}, "toolConfig.mode", "not known"),
    "an unknown mode": (
        {"tools": [], "toolConfig": calling(mode="SOME")},
        "toolConfig.functionCallingConfig.mode",
        "AUTO, ANY, NONE, VALIDATED",
    ),
    "a mode that is no string": (
        {"tools": [], "toolConfig": calling(mode=1)},
        "toolConfig.functionCallingConfig.mode",
        "1",
    ),
    "an unknown field of the calling config": (
        {"tools": [], "toolConfig": calling(names=[])},
        "toolConfig.functionCallingConfig.names",
        "allowedFunctionNames",
    ),
    "names with mode AUTO": (
        {"tools": [{"name": "f"}], "toolConfig": calling(mode="AUTO", allowedFunctionNames=["f"])},
        "toolConfig.functionCallingConfig.allowedFunctionNames",
        "ANY or VALIDATED",
    ),
    "names without a mode": (
        {"tools": [{"name": "f"}], "toolConfig": calling(allowedFunctionNames=["f"])},
        "toolConfig.functionCallingConfig.allowedFunctionNames",
        "ANY or VALIDATED",
    ),
    "names that are no list": (
        {"tools": [{"name": "f"}], "toolConfig": calling(mode="ANY", allowedFunctionNames="f")},
        "toolConfig.functionCallingConfig.allowedFunctionNames",
        "list",
    ),
    "names that are not declared": (
        {"tools": [{"name": "f"}], "toolConfig": calling(mode="ANY", allowedFunctionNames=["f", "g"])},
        "toolConfig",
        "'g'",
    ),
    "mode VALIDATED among nothing": (
        {"tools": [{"googleSearch": {}}], "toolConfig": calling(mode="VALIDATED")},
        "toolConfig",
        "no function",
    ),
    "a flag that is no boolean": (
        {"tools": [], "toolConfig": {"includeServerSideToolInvocations": "yes"}},
        "toolConfig.includeServerSideToolInvocations",
        "true or false",
    ),
    "an unknown field of a place": (
        {"tools": [], "toolConfig": {"retrievalConfig": {"latLng": {"height": 1}}}},
        "toolConfig.retrievalConfig.latLng.height",
        "latitude",
    ),
    "a config nested too deep": ({"tools": [], "toolConfig": deep(5_000)}, "toolConfig", "deeper than 100"),
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_a_bad_document_is_refused_with_its_field(name: str) -> None:
    document, field, word = BAD_DOCUMENTS[name]
    with pytest.raises(BadTool) as caught:
        normalise(document)
    assert caught.value.field == field
    assert caught.value.tool == ("f" if name.startswith("a name twice") else "")
    assert word in caught.value.message


_KEYS = st.sampled_from(
    "tools tool_config toolConfig tool_choice type function name description parameters parametersJsonSchema strict "
    "inputSchema outputSchema functionDeclarations function_declarations googleSearch mcpServers behavior properties "
    "executor approval after idempotent cache_ttl timeout retries url headers worker http "
    "functionCallingConfig mode allowedFunctionNames retrievalConfig latLng items anyOf any_of enum required".split()
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["function", "f", "object", "OBJECT", "string", "STRING", "ANY", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)
_TOOLS = st.dictionaries(_KEYS, _VALUES, max_size=4) | st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g", "h"])},
    optional={"parameters": _VALUES, "inputSchema": _VALUES, "executor": _VALUES, "after": _VALUES, "retries": _VALUES},
)


@given(_VALUES | st.fixed_dictionaries({"tools": st.lists(_TOOLS, max_size=3)}, optional={"tool_config": _VALUES}))
def test_any_document_is_accepted_or_refused_and_never_changed(document: Any) -> None:
    before = copy.deepcopy(document)
    try:
        tools = normalise(document)
    except BadTool:
        pass
    else:
        declared = [{**declaration, **tools.rules.get(declaration["name"], {})} for declaration in tools.declarations]
        assert normalise({"tools": [{"functionDeclarations": declared}, *tools.builtins]}) == Tools(
            tools.declarations, tools.builtins, None, tools.rules
        )
    assert repr(document) == repr(before)
