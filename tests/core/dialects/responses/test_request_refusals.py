"""Requests to the Responses API that are refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from addon.core.dialects.responses.answer import Translator
from addon.core.dialects.responses.conversations import stored_items
from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.request import read_request
from tests.core.dialects.responses.published import response_of
from tests.core.dialects.responses.request_bodies import FORMAT, TOOL, body

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
    "a tool of OpenAI's own": ({"tools": [TOOL, {"type": "code_interpreter"}]}, "tools[1].type", "web_search"),
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
    "too high a penalty": ({"presence_penalty": 2.1}, "presence_penalty", "from -2 to 2"),
    "a penalty that is a text": ({"frequency_penalty": "1"}, "frequency_penalty", "number"),
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
    "an unknown verbosity": ({"text": {"verbosity": "none"}}, "text.verbosity", "medium"),
    "no text to stop at": ({"stop": ""}, "stop", "empty"),
    "no texts to stop at": ({"stop": []}, "stop", "1 to 5"),
    "too many texts to stop at": ({"stop": list("abcdef")}, "stop", "1 to 5"),
    "a stop that is a number": ({"stop": ["a", 1]}, "stop[1]", "string"),
    "a stop that is an object": ({"stop": {}}, "stop", "list"),
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
    "outputs of code": ({"include": ["code_interpreter_call.outputs"]}, "include[0]", "encrypted"),
    "includes that are no list": ({"include": "x"}, "include", "list"),
    "a background response that is not stored": ({"background": True, "store": False}, "background", "store"),
    "a background of nought": ({"background": 0}, "background", "true or false"),
    "no calls at all": ({"max_tool_calls": 0}, "max_tool_calls", "1 or more"),
    "a stored prompt": ({"prompt": {"id": "p"}}, "prompt", "instructions"),
    "too many likelihoods": ({"top_logprobs": 21}, "top_logprobs", "0 to 20"),
    "likelihoods that are a flag": ({"top_logprobs": True}, "top_logprobs", "whole number"),
    "another truncation": ({"truncation": "middle"}, "truncation", "disabled"),
    "another tier": ({"service_tier": "ultrafast"}, "service_tier", "flex"),
    "a cache for a day": ({"prompt_cache_retention": "24h"}, "prompt_cache_retention", "in_memory"),
    "a cache with marks": ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options", "implicit"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation", "own"),
    "compacted histories": ({"context_management": [{"type": "compaction"}]}, "context_management", "whole"),
    "background windows": ({"background_options": {"completion_window": "2h"}}, "background_options", "at once"),
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
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "y", "annotations": []}],
        },
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
ODD: list[Any] = [None, True, False, 0, -1.5, 10**400, "", "x", "auto", "function", [], {}, ["x"], [{}], {"type": "x"}]


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
    refused: list[tuple[Invalid, bool]] = []
    for at in places(FULL):
        for odd in ODD:
            try:
                wanted = read_request(with_odd(at, odd))
                wanted.tool_config([{"functionDeclarations": [{"name": "f"}]}])
                added = wanted.add_to(StoredCalls())
                stored_items(wanted.raw_input, added.contents, str)
            except Invalid as error:
                refused.append((error, bool(at)))
            else:
                response_of(Translator(wanted, "resp_1", new_id=str, now=lambda: 0.0).document())
    assert refused
    assert all(error.message and (error.param or not has_place) for error, has_place in refused)


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(Invalid, match="object"):
        read_request([])
