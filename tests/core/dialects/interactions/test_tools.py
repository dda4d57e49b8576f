"""Tools and tool choices in Gemini's form, and back."""

from typing import Any

import pytest

from addon.core.dialects.interaction_requests import (
    calling_config,
    to_gemini_tools,
    to_interaction_tools,
    tool_choice,
    with_choice,
)
from addon.core.framing.documents import Malformed, decode, encode

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}
OWN = [
    {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "defer_loading": True},
    {"type": "function", "name": "g"},
    {"type": "google_search", "search_types": ["web_search"]},
    {"type": "mcp_server", "name": "m", "url": "u"},
]


def test_the_clients_tools_are_restored_unchanged() -> None:
    assert to_interaction_tools(to_gemini_tools(OWN)) == OWN


def test_functions_become_declarations_and_other_tools_are_built_in() -> None:
    first, second, *others = to_gemini_tools(OWN)
    (declaration,) = first["functionDeclarations"]
    assert declaration == {"name": "f", "description": "d", "parametersJsonSchema": SCHEMA, "defer_loading": True}
    assert second == {"functionDeclarations": [{"name": "g"}]}
    assert others == [{"tool": tool} for tool in OWN[2:]]


TOOLSETS: dict[str, tuple[Json, list[Json]]] = {
    "a Gemini schema": (
        {
            "functionDeclarations": [
                {
                    "name": "f",
                    "parameters": {"type": "OBJECT", "properties": {"n": {"type": "INTEGER", "nullable": True}}},
                }
            ]
        },
        [
            {
                "type": "function",
                "name": "f",
                "parameters": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}},
            }
        ],
    ),
    "what only Gemini is told": (
        {"functionDeclarations": [{"name": "f", "response": {"type": "STRING"}, "behavior": "NON_BLOCKING"}]},
        [{"type": "function", "name": "f"}],
    ),
    "a built-in tool": (
        {"googleSearch": {"excludeDomains": ["x"]}},
        [{"type": "google_search", "exclude_domains": ["x"]}],
    ),
    "in the other spelling": ({"code_execution": {}}, [{"type": "code_execution"}]),
    "one that is not there here": ({"enterpriseWebSearch": {}}, []),
}


@pytest.mark.parametrize(("tool", "tools"), TOOLSETS.values(), ids=TOOLSETS)
def test_a_toolsets_tools_in_the_form_of_interactions(tool: Json, tools: list[Json]) -> None:
    assert to_interaction_tools([tool]) == tools


CHOICES: list[tuple[Any, Json]] = [
    ("auto", {"mode": "AUTO"}),
    ("any", {"mode": "ANY"}),
    ("none", {"mode": "NONE"}),
    ("validated", {"mode": "VALIDATED"}),
    ({"allowed_tools": {"mode": "any", "tools": ["f"]}}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
]


@pytest.mark.parametrize(("choice", "calling"), CHOICES)
def test_a_choice_is_converted_and_back(choice: Any, calling: Json) -> None:
    assert calling_config(choice) == calling
    assert tool_choice(calling) == choice


def test_a_choice_that_sets_nothing_is_none() -> None:
    assert calling_config(None) is None
    assert calling_config({"other": 1}) is None
    assert tool_choice(None) is None
    assert tool_choice({}) is None


CONFIGS: list[tuple[Json | None, Json | None, Json | None]] = [
    ({"tool_choice": "any", "seed": 1}, None, {"seed": 1}),
    ({"tool_choice": "any"}, None, None),
    (None, {"functionCallingConfig": {"mode": "ANY"}}, {"tool_choice": "any"}),
    ({"seed": 1}, {"functionCallingConfig": {"mode": "NONE"}}, {"seed": 1, "tool_choice": "none"}),
    ({"seed": 1, "tool_choice": "any"}, {"includeServerSideToolInvocations": True}, {"seed": 1}),
]


@pytest.mark.parametrize(("config", "tool_config", "expected"), CONFIGS)
def test_a_configuration_with_another_choice(config: Any, tool_config: Any, expected: Any) -> None:
    new = with_choice(*(encode(one) if one is not None else None for one in (config, tool_config)))
    assert (decode(new) if new is not None else None) == expected


def test_a_configuration_that_is_no_object_is_malformed() -> None:
    with pytest.raises(Malformed, match="generation_config"):
        with_choice(b"[]", None)
