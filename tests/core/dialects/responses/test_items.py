"""Input items: the parts that they become, and refusals with their position."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.items import read_input
from addon.core.dialects.responses.request import read_request
from tests.contents import model, user

PNG = {"mimeType": "image/png", "data": "aGk="}
PNG_URL = "data:image/png;base64,aGk="
PDF_URL = "data:application/pdf;base64,aGk="


def contents(items: Any) -> list[dict[str, Any]]:
    body = {"model": "gemini-3-flash", "input": items}
    before = copy.deepcopy(body)
    added = read_request(body).add_to(StoredCalls())
    assert body == before
    return added.contents


def message(content: Any, role: str = "user") -> list[Any]:
    return [{"role": role, "content": content}]


HI = {"role": "user", "content": "hi"}

TAKEN: dict[str, tuple[Any, list[Any]]] = {
    "a text": ("hi", [user({"text": "hi"})]),
    "a message": (message("hi"), [user({"text": "hi"})]),
    "a message with its type": ([{"type": "message", "role": "user", "content": "hi"}], [user({"text": "hi"})]),
    "parts": (
        message([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
        [user({"text": "a"}, {"text": "b"})],
    ),
    "an image": (
        message([{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": PNG_URL}]),
        [user({"text": "what?"}, {"inlineData": PNG})],
    ),
    "an image as clients dump it": (
        message([{"type": "input_image", "image_url": PNG_URL, "detail": "auto", "file_id": None}]),
        [user({"inlineData": PNG})],
    ),
    "a data URL with parameters, in capitals": (
        message([{"type": "input_image", "image_url": "DATA:Image/PNG;name=a.png;BASE64,aGk="}]),
        [user({"inlineData": PNG})],
    ),
    "a file": (
        message([{"type": "input_file", "file_data": PDF_URL, "filename": "a.pdf"}]),
        [user({"inlineData": {"mimeType": "application/pdf", "data": "aGk="}})],
    ),
    "an answer of the model": ([HI, *message("yes", "assistant"), HI], [
        user({"text": "hi"}), model({"text": "yes"}), user({"text": "hi"})
    ]),
    "an answer as it was given out": (
        [
            HI,
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "phase": None,
                "content": [
                    {"type": "output_text", "text": "yes", "annotations": [], "logprobs": None},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
            HI,
        ],
        [user({"text": "hi"}), model({"text": "yes"}, {"text": "no"}), user({"text": "hi"})],
    ),
    "empty answers say nothing": ([HI, *message("", "assistant"), HI], [user({"text": "hi"}, {"text": "hi"})]),
    "reasoning tells nothing": (
        [
            HI,
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None, "status": None},
            *message([{"type": "output_text", "text": "yes"}], "assistant"),
            HI,
        ],
        [user({"text": "hi"}), model({"text": "yes"}), user({"text": "hi"})],
    ),
    "messages of one side are one turn": (
        [HI, HI, *message("a", "assistant"), *message("b", "assistant"), HI],
        [user({"text": "hi"}, {"text": "hi"}), model({"text": "a"}, {"text": "b"}), user({"text": "hi"})],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("items", "expected"), TAKEN.values(), ids=TAKEN)
def test_items_become_contents(items: Any, expected: list[Any]) -> None:
    assert contents(items) == expected


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}

OUTPUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a word": ("sunny", {"response": {"result": "sunny"}}),
    "an object": ('{"temp":72,"unit":"F"}', {"response": {"temp": 72, "unit": "F"}}),
    "a list": ("[1]", {"response": {"result": "[1]"}}),
    "nothing": ("", {"response": {"result": ""}}),
    "text parts": (
        [{"type": "input_text", "text": '{"a":'}, {"type": "input_text", "text": "1}"}],
        {"response": {"a": 1}},
    ),
    "an image": (
        [{"type": "input_image", "image_url": PNG_URL}],
        {"response": {}, "parts": [{"inlineData": PNG}]},
    ),
    "a file beside words": (
        [{"type": "input_text", "text": "here"}, {"type": "input_file", "file_data": PNG_URL}],
        {"response": {"result": "here"}, "parts": [{"inlineData": PNG}]},
    ),
    "no parts": ([], {"response": {"result": ""}}),
}


@pytest.mark.parametrize(("output", "response"), OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_becomes_a_response(output: Any, response: dict[str, Any]) -> None:
    sent = contents([HI, CALL, {**OUTPUT, "output": output, "status": None}])

    assert sent[-1] == user({"functionResponse": {"name": "f", **response}})


def part(**fields: Any) -> list[Any]:
    return message([fields])


# the input → the param that is named, and a word of the message
REFUSED: dict[str, tuple[Any, str, str]] = {
    "a number": (3, "input", "string or a list"),
    "no words": ("", "input", "empty"),
    "no items": ([], "input", "nothing"),
    "an item that is no object": (["hi"], "input[0]", "object"),
    "an unknown item": ([HI, {"type": "computer_call"}], "input[1].type", "function_call_output"),
    "an item of no kind": ([{"content": "x"}], "input[0].type", "message"),
    "an unknown role": (message("x", "tool"), "input[0].role", '"developer"'),
    "no content": ([{"role": "user"}], "input[0].content", "missing"),
    "an empty message": (message(""), "input[0].content", "empty"),
    "content that is an object": (message({}), "input[0].content", "list"),
    "an unknown member": ([{**HI, "name": "x"}], "input[0].name", "known"),
    "an unknown part": (part(type="input_audio"), "input[0].content[0].type", '"input_image"'),
    "a part that is a string": (message(["x"]), "input[0].content[0]", "object"),
    "a part without text": (part(type="input_text"), "input[0].content[0].text", "missing"),
    "a text that is none": (part(type="input_text", text=1), "input[0].content[0].text", "string"),
    "a mark for a cache": (
        part(type="input_text", text="x", prompt_cache_breakpoint={"mode": "explicit"}),
        "input[0].content[0].prompt_cache_breakpoint",
        "known",
    ),
    "a user's refusal": (part(type="refusal", refusal="x"), "input[0].content[0].type", '"input_text"'),
    "an image in instructions": (
        message([{"type": "input_image", "image_url": PNG_URL}], "system"),
        "input[0].content[0].type",
        '"input_text"',
    ),
    "an image by its address": (
        part(type="input_image", image_url="https://x.example/a.png"),
        "input[0].content[0].image_url",
        "data URL",
    ),
    "an image that is elsewhere": (part(type="input_image", file_id="f"), "input[0].content[0].file_id", "image_url"),
    "an image that is none": (part(type="input_image", image_url=PDF_URL), "input[0].content[0].image_url", "no image"),
    "no image": (part(type="input_image"), "input[0].content[0].image_url", "missing"),
    "a close look": (
        part(type="input_image", image_url=PNG_URL, detail="full"),
        "input[0].content[0].detail",
        "original",
    ),
    "data that is not base64": (
        part(type="input_image", image_url="data:image/png;base64,@@@"),
        "input[0].content[0].image_url",
        "base64",
    ),
    "data without its padding": (
        part(type="input_image", image_url="data:image/png;base64,aGk"),
        "input[0].content[0].image_url",
        "padded",
    ),
    "data with its padding inside": (
        part(type="input_image", image_url="data:image/png;base64,aG=k"),
        "input[0].content[0].image_url",
        "padded",
    ),
    "data beyond ASCII": (
        part(type="input_image", image_url="data:image/png;base64,ä"),
        "input[0].content[0].image_url",
        "base64",
    ),
    "data as text": (
        part(type="input_image", image_url="data:image/svg+xml,<svg/>"),
        "input[0].content[0].image_url",
        "base64",
    ),
    "no data": (
        part(type="input_image", image_url="data:image/png;base64,"),
        "input[0].content[0].image_url",
        "no data",
    ),
    "a file by its address": (
        part(type="input_file", file_url="https://x.example/a.pdf"),
        "input[0].content[0].file_url",
        "file_data",
    ),
    "a file that is elsewhere": (part(type="input_file", file_id="f"), "input[0].content[0].file_id", "file_data"),
    "a file without a type": (
        part(type="input_file", filename="a.pdf", file_data="aGk="),
        "input[0].content[0].file_data",
        "data URL",
    ),
    "a file at a close look": (
        part(type="input_file", file_data=PDF_URL, detail=1),
        "input[0].content[0].detail",
        "original",
    ),
    "a call without a name": ([HI, {**CALL, "name": ""}], "input[1].name", "empty"),
    "a call without an id": ([HI, {**CALL, "call_id": None}], "input[1].call_id", "missing"),
    "a call with an empty id": ([HI, {**CALL, "call_id": ""}], "input[1].call_id", "empty"),
    "arguments that are no JSON": ([HI, {**CALL, "arguments": "{"}], "input[1].arguments", "JSON object"),
    "arguments that are a list": ([HI, {**CALL, "arguments": "[]"}], "input[1].arguments", "JSON object"),
    "arguments that are an object": ([HI, {**CALL, "arguments": {}}], "input[1].arguments", "string"),
    "a call that is not waited for": ([HI, {**CALL, "async": True}], "input[1].async", "waits"),
    "a call by a program": ([HI, {**CALL, "caller": {"type": "program"}}], "input[1].caller", "known"),
    "one call twice": ([HI, CALL, OUTPUT, CALL], "input[3].call_id", "input[1]"),
    "two outputs of a call": ([HI, CALL, OUTPUT, OUTPUT], "input[3].call_id", "input[2]"),
    "an output without a call": ([HI, {**OUTPUT, "call_id": None}], "input[1].call_id", "missing"),
    "no output": ([HI, CALL, {**OUTPUT, "output": None}], "input[2].output", "missing"),
    "an output that is an object": ([HI, CALL, {**OUTPUT, "output": {}}], "input[2].output", "string"),
    "an output of sounds": (
        [HI, CALL, {**OUTPUT, "output": [{"type": "output_audio"}]}],
        "input[2].output[0].type",
        '"input_image"',
    ),
    "the model's word last": ([HI, *message("x", "assistant")], "input[1]", "must end"),
    "instructions alone": (message("x", "developer"), "input", "nothing"),
    "a call as the first word": ([CALL, OUTPUT], "input[0]", "must follow a user"),
}


@pytest.mark.parametrize(("items", "param", "word"), REFUSED.values(), ids=REFUSED)
def test_unsupported_items_are_refused_with_their_position(items: Any, param: str, word: str) -> None:
    with pytest.raises(Invalid) as caught:
        contents(items)

    assert (caught.value.param, word in caught.value.message) == (param, True), caught.value.message


def test_models_before_gemini_3_take_no_images_as_results() -> None:
    output = {**OUTPUT, "output": [{"type": "input_image", "image_url": PNG_URL}]}
    wanted = read_request({"model": "gemini-2.5-flash", "input": [HI, CALL, output]})

    with pytest.raises(Invalid, match="only text") as caught:
        wanted.add_to(StoredCalls())

    assert caught.value.param == "input[2].output"


def test_arguments_may_be_left_empty() -> None:
    sent = contents([HI, {**CALL, "arguments": ""}, OUTPUT])

    assert sent[1]["parts"][0]["functionCall"] == {"name": "f", "args": {}}


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("<think>x</think>", False),
        ("<think>\n\n</think>", False),
        ([{"type": "output_text", "text": " <think>x</think>\n"}], False),
        ("<think>x</think> 4", True),
        ("Use <think>x</think>", True),
        ("<think>x</think> and <think>y</think>", True),
        ("<think>", True),
    ],
)
def test_thoughts_in_a_message_of_their_own_are_left_out(content: Any, kept: bool) -> None:
    assert bool(read_input([{"role": "assistant", "content": content}]).items) == kept
    assert read_input([{"role": "user", "content": "<think>x</think>"}]).items
