"""What the fields of a request to the Responses API become, and how they are echoed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from openai.types.responses import response_create_params as params

from addon.core.dialects.responses.answer import Translator
from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.request import FIELDS, read_request
from addon.fake_gemini import fields, rules
from addon.fake_gemini.routes import find_model
from tests.core.dialects.responses.published import response_of
from tests.core.dialects.responses.request_bodies import FORMAT, SCHEMA, TOOL, body

DECLARATION = {
    "name": "f",
    "description": "d",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
}
LINKED = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}


def test_every_field_that_the_published_client_can_send_is_known() -> None:
    sent = set(params.ResponseCreateParamsNonStreaming.__annotations__)
    sent |= set(params.ResponseCreateParamsBase.__annotations__)
    beyond = {"presence_penalty", "frequency_penalty", "stop"}
    assert sent | beyond == set(FIELDS), "Open Responses has the penalties, chat completions have stop"


def declared(*names: str) -> list[Any]:
    return [{"functionDeclarations": [{"name": name} for name in names]}]


CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}),
    "a temperature of nought": ({"temperature": 0}, {"temperature": 0}),
    "top_p": ({"top_p": 1}, {"topP": 1}),
    "penalties": (
        {"presence_penalty": -2, "frequency_penalty": 0.5},
        {"presencePenalty": -2, "frequencyPenalty": 0.5},
    ),
    "a text to stop at": ({"stop": "END"}, {"stopSequences": ["END"]}),
    "texts to stop at": ({"stop": ["a", "b"]}, {"stopSequences": ["a", "b"]}),
    "log probabilities": ({"include": ["message.output_text.logprobs"]}, {"responseLogprobs": True}),
    "those of other tokens": ({"top_logprobs": 3}, {"responseLogprobs": True, "logprobs": 3}),
    "max_output_tokens": ({"max_output_tokens": 7}, {"maxOutputTokens": 7}),
    "text": ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {}),
    "any JSON": ({"text": {"format": {"type": "json_object"}}}, {"responseMimeType": "application/json"}),
    "JSON of a schema": (
        {"text": {"format": {**FORMAT, "strict": True}}},
        {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
    ),
    "JSON of a schema that is described": (
        {"text": {"format": {**FORMAT, "description": "the town", "strict": None}}},
        {"responseMimeType": "application/json", "responseJsonSchema": {"description": "the town", **SCHEMA}},
    ),
    "the schema's own description stays": (
        {"text": {"format": {**FORMAT, "schema": {**SCHEMA, "description": "own"}, "description": "other"}}},
        {"responseMimeType": "application/json", "responseJsonSchema": {**SCHEMA, "description": "own"}},
    ),
    "JSON of a schema that goes on as long as it is not null": (
        {"text": {"format": {**FORMAT, "schema": {**LINKED, "required": ["value", "next"]}}}},
        {"responseMimeType": "application/json", "responseJsonSchema": {**LINKED, "required": ["value"]}},
    ),
    "no effort": ({"reasoning": {"effort": None}}, {}),
    "effort": ({"reasoning": {"effort": "low"}}, {"thinkingConfig": {"thinkingLevel": "LOW"}}),
    "the least effort": ({"reasoning": {"effort": "minimal"}}, {"thinkingConfig": {"thinkingLevel": "MINIMAL"}}),
    "effort of a model whose name says nothing": (
        {"model": "models/our-own", "reasoning": {"effort": "high"}},
        {"thinkingConfig": {"thinkingLevel": "HIGH"}},
    ),
    "effort before Gemini 3": (
        {"model": "gemini-2.5-flash", "reasoning": {"effort": "medium"}},
        {"thinkingConfig": {"thinkingBudget": 8192}},
    ),
    "no thinking before Gemini 3": (
        {"model": "gemini-2.5-flash", "reasoning": {"effort": "none"}},
        {"thinkingConfig": {"thinkingBudget": 0}},
    ),
    "a summary": (
        {"reasoning": {"effort": "high", "summary": "auto", "context": "auto", "mode": "standard"}},
        {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"}},
    ),
    "a summary by its old name": (
        {"reasoning": {"generate_summary": "auto"}},
        {"thinkingConfig": {"includeThoughts": True}},
    ),
}


@pytest.mark.parametrize(("given", "config"), CONFIGS.values(), ids=CONFIGS)
def test_options_become_a_generation_config(given: dict[str, Any], config: dict[str, Any]) -> None:
    whole = body(**given)
    before = copy.deepcopy(whole)

    wanted = read_request(whole)

    assert wanted.generation_config == config
    assert wanted.shows_thoughts == ("includeThoughts" in config.get("thinkingConfig", {}))
    assert whole == before


NEUTRAL: dict[str, Any] = {
    "access_programs": {},
    "background": False,
    "background_options": {"completion_window": "soonest"},
    "context_management": [],
    "image": {"context_compression": "auto"},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "in_memory",
    "safety_identifier": "s",
    "service_tier": "auto",
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": "u",
}


@pytest.mark.parametrize(("name", "value"), NEUTRAL.items(), ids=NEUTRAL)
def test_options_without_effect_are_accepted(name: str, value: Any) -> None:
    wanted = read_request(body(**{name: value}))

    assert wanted.generation_config == {}


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"model", "input"}))
def test_null_is_unset(name: str) -> None:
    assert read_request(body(**{name: None})) == read_request(body())


def test_a_stream_may_say_that_it_wants_no_padding() -> None:
    wanted = read_request(body(stream=True, stream_options={"include_obfuscation": False}))

    assert wanted.stream is True


FIELDS_READ: dict[str, tuple[dict[str, Any], str, Any]] = {
    "no stream": ({}, "stream", False),
    "a stream": ({"stream": True}, "stream", True),
    "stored": ({}, "store", True),
    "not stored": ({"store": False}, "store", False),
    "metadata": ({"metadata": {"a": "b"}}, "metadata", {"a": "b"}),
    "as many metadata as fit": (
        {"metadata": {f"{n:02}" * 32: "v" * 512 for n in range(16)}},
        "metadata",
        {f"{n:02}" * 32: "v" * 512 for n in range(16)},
    ),
    "a conversation by name": ({"conversation": "c"}, "conversation", "c"),
    "a conversation as an object": ({"conversation": {"id": "c"}}, "conversation", "c"),
    "another response": ({"previous_response_id": "resp_1"}, "previous_response_id", "resp_1"),
    "instructions": ({"instructions": "be brief"}, "instructions", "be brief"),
    "no tools given": ({}, "tools", None),
    "an empty list of tools": ({"tools": []}, "tools", []),
    "a tool": ({"tools": [TOOL]}, "tools", [{"functionDeclarations": [DECLARATION]}]),
    "a tool in chat's form": (
        {"tools": [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}]},
        "tools",
        [{"functionDeclarations": [DECLARATION]}],
    ),
    "a tool with every default said": (
        {
            "tools": [
                {**TOOL, "async": False, "defer_loading": False, "allowed_callers": ["direct"], "output_schema": None}
            ]
        },
        "tools",
        [{"functionDeclarations": [DECLARATION]}],
    ),
    "a tool without arguments": (
        {"tools": [{"type": "function", "name": "f", "parameters": None, "strict": None, "description": None}]},
        "tools",
        [{"functionDeclarations": [{"name": "f"}]}],
    ),
}


@pytest.mark.parametrize(("given", "name", "value"), FIELDS_READ.values(), ids=FIELDS_READ)
def test_fields_are_read(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(read_request(body(**given)), name) == value


CHOICES: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "none said": (None, None),
    "auto": ("auto", {"mode": "AUTO"}),
    "required": ("required", {"mode": "ANY"}),
    "none": ("none", {"mode": "NONE"}),
    "a function": ({"type": "function", "name": "f"}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
    "some that may be called": (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        {"mode": "VALIDATED", "allowedFunctionNames": ["f"]},
    ),
    "some of which one must be called": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        {"mode": "ANY", "allowedFunctionNames": ["f"]},
    ),
}


@pytest.mark.parametrize(("choice", "calling"), CHOICES.values(), ids=CHOICES)
def test_a_choice_becomes_a_tool_config(choice: Any, calling: dict[str, Any] | None) -> None:
    config = None if calling is None else {"functionCallingConfig": calling}

    assert read_request(body(tools=[TOOL], tool_choice=choice)).tool_config(declared("f")) == config
    assert read_request(body(tool_choice=choice)).tool_config(declared("f", "g")) == config, "of a conversation's tools"


def test_a_choice_is_checked_against_the_conversations_tools_once_they_are_known() -> None:
    wanted = read_request(body(tool_choice={"type": "function", "name": "f"}))

    with pytest.raises(Invalid, match="'f'") as caught:
        wanted.tool_config(declared("g"))

    assert caught.value.param == "tool_choice"


def test_instructions_come_before_system_messages_and_earlier_ones_before_new_ones() -> None:
    wanted = read_request(
        body(
            instructions="one",
            input=[
                {"role": "developer", "content": "three"},
                {"role": "user", "content": "hi"},
                {"role": "system", "content": [{"type": "input_text", "text": "four"}]},
            ],
        )
    )

    assert wanted.input.system == [{"text": "three"}, {"text": "four"}]
    assert wanted.system_instruction([{"text": "two"}]) == {
        "parts": [{"text": "one"}, {"text": "two"}, {"text": "three"}, {"text": "four"}]
    }


def test_without_instructions_there_is_no_system_instruction() -> None:
    assert read_request(body(instructions="")).system_instruction() is None


NESTED_CHOICES: dict[str, tuple[Any, Any]] = {
    "a function": ({"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}),
    "some": (
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    ),
}


@pytest.mark.parametrize(("choice", "expected"), NESTED_CHOICES.values(), ids=NESTED_CHOICES)
def test_a_choice_in_chats_form_is_shown_in_that_of_responses(choice: Any, expected: Any) -> None:
    assert read_request(body(tools=[TOOL], tool_choice=choice)).echo["tool_choice"] == expected


ASKED = [given for given, _ in CONFIGS.values()]


ASKED += [{"tools": [TOOL], "tool_choice": choice} for choice, _ in CHOICES.values()]


@pytest.mark.parametrize("given", ASKED, ids=[*CONFIGS, *CHOICES])
def test_the_strict_local_gemini_accepts_the_request_and_the_published_types_its_echo(given: dict[str, Any]) -> None:
    wanted = read_request(body(**given))
    contents = wanted.add_to(StoredCalls()).contents
    request: dict[str, Any] = {"contents": contents, "generationConfig": wanted.generation_config}
    if wanted.tools:
        request["tools"] = wanted.tools
        request["toolConfig"] = wanted.tool_config(wanted.tools)
    model = find_model(wanted.model) or find_model("gemini-3-flash")
    assert model is not None

    rules.check(fields.read(request, "GenerateContentRequest", frozenset({"developer"})), model, frozenset())

    response_of(Translator(wanted, "resp_1", new_id=str, now=lambda: 0.0).document())


def test_the_echo_repeats_the_request() -> None:
    wanted = read_request(
        body(
            instructions="be brief",
            temperature=0.5,
            metadata={"a": "b"},
            conversation="c",
            tools=[{"type": "function", "function": {"name": "g"}}, TOOL],
            tool_choice="required",
            reasoning={"effort": "low"},
            text={"format": FORMAT},
            user="u",
        )
    )

    expected = {
        "instructions": "be brief",
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "conversation": {"id": "c"},
        "tool_choice": "required",
        "tools": [
            {"type": "function", "name": "g", "description": None, "parameters": None, "strict": False},
            TOOL,
        ],
        "reasoning": {"effort": "low", "summary": None},
        "text": {"format": {**FORMAT, "description": None, "strict": True}, "verbosity": "medium"},
        "top_p": 0.95,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "user": "u",
        "parallel_tool_calls": True,
    }
    assert {name: wanted.echo[name] for name in expected} == expected


@pytest.mark.parametrize("given", [None, True, False])
def test_whether_calls_may_come_together_is_read_and_shown(given: bool | None) -> None:
    wanted = read_request(body(parallel_tool_calls=given))

    assert (wanted.parallel, wanted.echo["parallel_tool_calls"]) == (given, given is not False)
