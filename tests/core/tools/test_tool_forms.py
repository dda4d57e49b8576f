"""Tools and choices in every form become Gemini's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.tools.tool_forms import BadTool, Tools, normalise
from tests.core.tools.declarations import FULL, GEMINI, JSON_SCHEMA, calling

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
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}},
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
