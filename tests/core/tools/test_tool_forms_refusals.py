"""Tools and documents that are refused, with the name of the tool and the field."""

from __future__ import annotations

from typing import Any

import pytest

from addon.core.tools.tool_forms import BadTool, normalise
from tests.core.tools.declarations import FULL, GEMINI, calling


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"items": value}
    return value


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
        "tool_choice.tools",
        "one or more",
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
