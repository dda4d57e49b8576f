"""Every field of a Responses API request: its result, or its refusal with the field named."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import response_create_params as params

from addon.core.dialects.responses import Invalid, StoredCalls, Translator, read_request
from addon.core.dialects.responses.request import FIELDS
from addon.fake_gemini import fields, rules
from addon.fake_gemini.models import find
from tests.core.dialects.responses.published import response_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
DECLARATION = {
    "name": "f",
    "description": "d",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
}
LINKED = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


def body(**given: Any) -> dict[str, Any]:
    return {"model": "gemini-3-flash", "input": "hi", **given}


def test_every_field_that_the_published_client_can_send_is_known() -> None:
    sent = set(params.ResponseCreateParamsNonStreaming.__annotations__)
    sent |= set(params.ResponseCreateParamsBase.__annotations__)
    assert sent == set(FIELDS)


CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}),
    "a temperature of nought": ({"temperature": 0}, {"temperature": 0}),
    "top_p": ({"top_p": 1}, {"topP": 1}),
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
    "no tools given": ({}, "declarations", None),
    "an empty list of tools": ({"tools": []}, "declarations", []),
    "a tool": ({"tools": [TOOL]}, "declarations", [DECLARATION]),
    "a tool in chat's form": (
        {"tools": [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}]},
        "declarations",
        [DECLARATION],
    ),
    "a tool with every default said": (
        {
            "tools": [
                {**TOOL, "async": False, "defer_loading": False, "allowed_callers": ["direct"], "output_schema": None}
            ]
        },
        "declarations",
        [DECLARATION],
    ),
    "a tool without arguments": (
        {"tools": [{"type": "function", "name": "f", "parameters": None, "strict": None, "description": None}]},
        "declarations",
        [{"name": "f"}],
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

    assert read_request(body(tools=[TOOL], tool_choice=choice)).tool_config(["f"]) == config
    assert read_request(body(tool_choice=choice)).tool_config(["f", "g"]) == config, "of a conversation's tools"


def test_a_choice_is_checked_against_the_conversations_tools_once_they_are_known() -> None:
    wanted = read_request(body(tool_choice={"type": "function", "name": "f"}))

    with pytest.raises(Invalid, match="'f'") as caught:
        wanted.tool_config(["g"])

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


LONG = "x" * 513
# the fields given → the param that is named, and a word of the message
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown field": ({"top_k": 4}, "top_k", "known"),
    "no model": ({"model": None}, "model", "missing"),
    "a model that is no string": ({"model": 3}, "model", "string"),
    "a model that leads elsewhere in a URL": ({"model": "gemini-3/../x"}, "model", "Gemini model"),
    "no input": ({"input": None}, "input", "missing"),
    "tools that are no list": ({"tools": {}}, "tools", "list"),
    "a tool that is no object": ({"tools": ["f"]}, "tools[0]", "object"),
    "a tool of OpenAI's own": ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type", "web_search"),
    "a tool in Gemini's form": ({"tools": [{"functionDeclarations": []}]}, "tools[0].type", "function"),
    "a tool that says how it is run": ({"tools": [{**TOOL, "executor": {}}]}, "tools[0].executor", "known"),
    "the same in chat's form": (
        {"tools": [{"type": "function", "function": {"name": "f", "approval": True}}]},
        "tools[0].function.approval",
        "known",
    ),
    "the same beside chat's form": (
        {"tools": [{"type": "function", "function": {"name": "f"}, "executor": {}}]},
        "tools[0].executor",
        "known",
    ),
    "a tool that waits for nobody": ({"tools": [{**TOOL, "async": True}]}, "tools[0].async", "false"),
    "a tool for programs": (
        {"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]},
        "tools[0].allowed_callers",
        "direct",
    ),
    "a tool with a schema of its output": ({"tools": [{**TOOL, "output_schema": {}}]}, "tools[0].output_schema", ""),
    "a bad name": ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "letter"),
    "no name": ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
    "a name twice": ({"tools": [TOOL, TOOL]}, "tools[1].name", "differ"),
    "too many tools": ({"tools": [{**TOOL, "name": f"f{n}"} for n in range(513)]}, "tools", "512"),
    "a schema of no object": ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools[0].parameters.type", ""),
    "parameters that are no object": ({"tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters", "object"),
    "a strictness that is no flag": ({"tools": [{**TOOL, "strict": "yes"}]}, "tools[0].strict", "true or false"),
    "an unknown choice": ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", '"required"'),
    "a choice that is not declared": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice",
        "'g'",
    ),
    "a choice among nothing": ({"tools": [], "tool_choice": "required"}, "tool_choice", "no function"),
    "a choice of OpenAI's own": ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice", "function"),
    "calls at once, in words": ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    "too warm": ({"temperature": 2.1}, "temperature", "from 0 to 2"),
    "a temperature that is a flag": ({"temperature": True}, "temperature", "number"),
    "top_p above one": ({"top_p": 1.5}, "top_p", "from 0 to 1"),
    "no tokens at all": ({"max_output_tokens": 0}, "max_output_tokens", "1 or more"),
    "half a token": ({"max_output_tokens": 1.5}, "max_output_tokens", "whole number"),
    "an unknown format": ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
    "a format without a type": ({"text": {"format": {}}}, "text.format.type", "missing"),
    "a format that is a string": ({"text": {"format": "text"}}, "text.format", "object"),
    "text with a schema": ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", "known"),
    "a schema without a name": ({"text": {"format": {**FORMAT, "name": None}}}, "text.format.name", "missing"),
    "a schema with a bad name": ({"text": {"format": {**FORMAT, "name": "a b"}}}, "text.format.name", "letters"),
    "a format without its schema": ({"text": {"format": {**FORMAT, "schema": None}}}, "text.format.schema", "missing"),
    "a schema with a reference to nothing": (
        {"text": {"format": {**FORMAT, "schema": {"properties": {"a": {"$ref": "#/$defs/A"}}}}}},
        "text.format.schema.properties.a.$ref",
        "names nothing",
    ),
    "a schema without an end": (
        {"text": {"format": {**FORMAT, "schema": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}}}},
        "text.format.schema.properties.a",
        "cycle",
    ),
    "a schema that is a list": ({"text": {"format": {**FORMAT, "schema": []}}}, "text.format.schema", "object"),
    "a strict format that is no flag": ({"text": {"format": {**FORMAT, "strict": 1}}}, "text.format.strict", "true"),
    "JSON beside tools before Gemini 3": (
        {"model": "gemini-2.5-flash", "tools": [TOOL], "text": {"format": {"type": "json_object"}}},
        "text.format",
        "with tools",
    ),
    "verbosity": ({"text": {"verbosity": "low"}}, "text.verbosity", "medium"),
    "an unknown member of text": ({"text": {"style": "x"}}, "text.style", "known"),
    "more effort than there is": ({"reasoning": {"effort": "xhigh"}}, "reasoning.effort", '"high"'),
    "no thinking from Gemini 3 on": ({"reasoning": {"effort": "none"}}, "reasoning.effort", "always thinks"),
    "effort of a model that does not think": (
        {"model": "gemini-2.0-flash", "reasoning": {"effort": "low"}},
        "reasoning.effort",
        "does not think",
    ),
    "a summary of a model that does not think": (
        {"model": "gemini-2.0-flash", "reasoning": {"summary": "auto"}},
        "reasoning.summary",
        "does not think",
    ),
    "a kind of summary": ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", '"auto"'),
    "reasoning in other modes": ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "standard"),
    "reasoning of other turns": ({"reasoning": {"context": "all_turns"}}, "reasoning.context", "auto"),
    "too many metadata": ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
    "a long key": ({"metadata": {"k" * 65: ""}}, "metadata", "64"),
    "a long value": ({"metadata": {"k": LONG}}, "metadata.k", "512"),
    "a value that is no string": ({"metadata": {"k": 1}}, "metadata.k", "string"),
    "metadata that is a list": ({"metadata": []}, "metadata", "object"),
    "a store that is no flag": ({"store": "no"}, "store", "true or false"),
    "a stream that is no flag": ({"stream": 1}, "stream", "true or false"),
    "instructions that are a list": ({"instructions": []}, "instructions", "string"),
    "a conversation without a name": ({"conversation": ""}, "conversation", "1 to 256"),
    "a conversation of two lines": ({"conversation": "a\nb"}, "conversation", "printable"),
    "a conversation without an id": ({"conversation": {}}, "conversation.id", "missing"),
    "a conversation with more": ({"conversation": {"id": "c", "x": 1}}, "conversation.x", "known"),
    "a conversation that is a number": ({"conversation": 3}, "conversation", "string"),
    "two histories": (
        {"conversation": "c", "previous_response_id": "r"},
        "previous_response_id",
        "only one",
    ),
    "a response without an id": ({"previous_response_id": ""}, "previous_response_id", "1 to 256"),
    "options of a stream that is none": ({"stream_options": {}}, "stream_options", "stream"),
    "a padded stream": (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "padded",
    ),
    "an unknown option of a stream": ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "known"),
    "log probabilities": ({"include": ["message.output_text.logprobs"]}, "include[0]", "encrypted"),
    "includes that are no list": ({"include": "x"}, "include", "list"),
    "background": ({"background": True}, "background", "false"),
    "a background of nought": ({"background": 0}, "background", "false"),
    "a limit of calls": ({"max_tool_calls": 3}, "max_tool_calls", "max_rounds"),
    "a stored prompt": ({"prompt": {"id": "p"}}, "prompt", "instructions"),
    "likelihoods": ({"top_logprobs": 2}, "top_logprobs", "0"),
    "truncation": ({"truncation": "auto"}, "truncation", "disabled"),
    "another tier": ({"service_tier": "flex"}, "service_tier", "auto"),
    "a cache for a day": ({"prompt_cache_retention": "24h"}, "prompt_cache_retention", "in_memory"),
    "a cache with marks": ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options", "implicit"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation", "own"),
    "compacted histories": ({"context_management": [{"type": "compaction"}]}, "context_management", "whole"),
    "compressed images": ({"image": {"context_compression": "enabled"}}, "image", "auto"),
    "programs": ({"access_programs": {"cyber": "standard"}}, "access_programs", "OpenAI"),
    "a user that is no string": ({"user": 7}, "user", "string"),
    "a key of a cache that is no string": ({"prompt_cache_key": 7}, "prompt_cache_key", "string"),
    "an identifier that is no string": ({"safety_identifier": 7}, "safety_identifier", "string"),
}


@pytest.mark.parametrize(("given", "param", "word"), REFUSED.values(), ids=REFUSED)
def test_unsupported_options_are_refused_with_their_name(given: dict[str, Any], param: str, word: str) -> None:
    whole = body(**given)
    before = copy.deepcopy(whole)

    with pytest.raises(Invalid) as caught:
        read_request(whole)

    assert (caught.value.param, word in caught.value.message) == (param, True), caught.value.message
    assert whole == before


FULL = body(
    input=[
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
                {"type": "input_file", "file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "y", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "t"}]},
    ],
    tools=[TOOL, {"type": "function", "function": {"name": "g"}}],
    tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    text={"format": FORMAT, "verbosity": "medium"},
    reasoning={"effort": "low", "summary": "auto"},
    metadata={"a": "b"},
    conversation={"id": "c"},
    include=["reasoning.encrypted_content"],
    stream=True,
    stream_options={"include_obfuscation": False},
)
ODD: list[Any] = [None, True, 0, -1.5, 10**30, "", "x", "auto", "function", [], {}, ["x"], [{}], {"type": "x"}]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from places(member, (*at, key))


def with_odd(at: tuple[Any, ...], odd: Any) -> Any:
    if not at:
        return odd
    whole = copy.deepcopy(FULL)
    holder: Any = whole
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = odd
    return whole


def test_any_value_anywhere_is_accepted_or_refused_with_a_message() -> None:
    refused: list[Invalid] = []
    for at in places(FULL):
        for odd in ODD:
            try:
                wanted = read_request(with_odd(at, odd))
                wanted.tool_config(["f"])
                wanted.add_to(StoredCalls())
            except Invalid as error:
                refused.append(error)
            else:
                response_of(Translator(wanted, "resp_1", new_id=str, now=lambda: 0.0).document())
    assert refused
    assert all(error.message and error.param for error in refused)


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(Invalid, match="object"):
        read_request([])


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
    if wanted.declarations:
        request["tools"] = [{"functionDeclarations": wanted.declarations}]
        request["toolConfig"] = wanted.tool_config(["f"])
    model = find(wanted.model) or find("gemini-3-flash")
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
        "text": {"format": FORMAT, "verbosity": "medium"},
        "user": "u",
        "parallel_tool_calls": True,
    }
    assert {name: wanted.echo[name] for name in expected} == expected


@pytest.mark.parametrize("given", [None, True, False])
def test_whether_calls_may_come_together_is_read_and_shown(given: bool | None) -> None:
    wanted = read_request(body(parallel_tool_calls=given))

    assert (wanted.parallel, wanted.echo["parallel_tool_calls"]) == (given, given is not False)
