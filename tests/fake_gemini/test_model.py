"""The deterministic model: its text and calls depend only on the request."""

from __future__ import annotations

import enum
import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from addon.fake_gemini.model import answer

Json = dict[str, Any]

TOOLS = [
    {
        "functionDeclarations": [
            {
                "name": "get_weather",
                "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
            },
            {
                "name": "setAlarm",
                "parametersJsonSchema": {
                    "type": "object",
                    "properties": {
                        "hour": {"type": "integer"},
                        "sound": {"enum": ["bell", "horn"]},
                        "loud": {"type": "boolean"},
                        "note": {"type": "string"},
                    },
                    "required": ["hour", "sound", "loud"],
                },
            },
        ]
    }
]


def user(*texts: str) -> Json:
    return {"role": "user", "parts": [{"text": text} for text in texts]}


def called(*names: str) -> Json:
    return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in names]}


def results(*names: str, text: str = "") -> Json:
    parts: list[Json] = [{"functionResponse": {"name": n, "response": {"output": f"{n}!"}}} for n in names]
    return {"role": "user", "parts": [*parts, {"text": text}] if text else parts}


def calls(*contents: Json, **more: Any) -> list[tuple[str, Json]]:
    return [(c.name, c.args) for c in answer({"contents": list(contents), "tools": TOOLS, **more}).calls]


def text(*contents: Json, **more: Any) -> str:
    reply = answer({"contents": list(contents), "tools": TOOLS, **more})
    assert not reply.calls
    return reply.text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("What is the weather in Tokyo?", [{"city": "Tokyo"}]),
        ("Weather in Paris and Tokyo", [{"city": "Paris"}, {"city": "Tokyo"}]),
        (
            "the WEATHER for New York, São Paulo, and Rome please",
            [{"city": "New York"}, {"city": "São Paulo"}, {"city": "Rome"}],
        ),
        ('weather of "the moon"', [{"city": "the moon"}]),
    ],
)
def test_a_word_of_a_function_calls_it_with_what_is_named(words: str, expected: list[Json]) -> None:
    assert calls(user(words)) == [("get_weather", args) for args in expected]


def test_arguments_follow_the_schema() -> None:
    assert calls(user("Ring the alarm at 7")) == [("setAlarm", {"hour": 7, "sound": "bell", "loud": True})]


class Kind(enum.StrEnum):
    LEAF = "leaf"
    ROOT = "root"


class Tree(BaseModel):
    """A schema with references, one of them to itself, as many clients send for structured output."""

    kind: Kind
    always: Literal["so"]
    left: Tree | None
    others: list[Tree]
    more: dict[str, int] | None = None
    size: int = 1


def test_references_are_followed_as_far_as_a_value_can_be() -> None:
    schema = Tree.model_json_schema()
    schema["$defs"]["Tree"]["required"].remove("left")  # must be possible with circular references
    leaf: Json = {"kind": "leaf", "always": "so", "left": None, "others": [], "more": {}}
    declaration = {"name": "plant_tree", "parametersJsonSchema": schema}
    (call,) = answer({"contents": [user("a tree")], "tools": [{"functionDeclarations": [declaration]}]}).calls
    assert call.args == {"kind": "leaf", "always": "so", "others": [leaf]}
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    reply_text = answer({"contents": [user("a tree")], "generationConfig": config}).text
    assert Tree.model_validate_json(reply_text) == Tree.model_validate(leaf)


def test_directives_make_parallel_calls_and_steps() -> None:
    words = user('say Wait. call get_weather {"city": "Paris"} and call setAlarm {"hour": 7} then call get_weather {}')
    first = answer({"contents": [words], "tools": TOOLS})
    assert (first.text, len(first.calls)) == ("Wait.", 2)
    names = ("get_weather", "setAlarm")
    assert calls(words, called(*names), results(*names)) == [("get_weather", {})]
    end = text(words, called(*names), results(*names), called("get_weather"), results("get_weather"))
    assert end.count("returned") == 3


def test_lines_are_parallel_calls_too() -> None:
    assert calls(user("call get_weather {}\ncall setAlarm")) == [("get_weather", {}), ("setAlarm", {})]


def test_forever_calls_again_after_each_result() -> None:
    words = user('call get_weather {"city": "A"} forever')
    step = [called("get_weather"), results("get_weather")]
    assert calls(words, *step, *step, *step) == [("get_weather", {"city": "A"})]


def test_an_undeclared_function_is_called_and_marked() -> None:
    (call,) = answer({"contents": [user("call ghost {}")], "tools": TOOLS}).calls
    assert not call.declared


def test_results_are_told_in_full() -> None:
    reply_text = text(user("weather in Rome"), called("get_weather"), results("get_weather"))
    assert reply_text == 'get_weather returned {"output": "get_weather!"}.'


def test_results_with_words_after_them_are_told_and_the_words_call_only_by_directive() -> None:
    before = [user("weather in Rome"), called("get_weather")]
    assert "get_weather returned" in text(*before, results("get_weather", text="weather in Oslo?"))
    assert "get_weather returned" in text(*before, results("get_weather"), user("go on"))
    next_reply = answer({"contents": [*before, results("get_weather", text="call setAlarm {}")], "tools": TOOLS})
    assert "get_weather returned" in next_reply.text
    assert [c.name for c in next_reply.calls] == ["setAlarm"]


def test_repeat_the_results_tells_all_of_the_history() -> None:
    history = [
        user("weather in Rome"),
        called("get_weather"),
        results("get_weather"),
        {"role": "model", "parts": [{"text": "ok"}]},
    ]
    assert "get_weather returned" in text(*history, user("repeat the results"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [("What is 2+2?", "2 + 2 = 4."), ("7 / 2", "7 / 2 = 3.5."), ("Good day", 'You said: "Good day".')],
)
def test_sums_and_echoes(words: str, expected: str) -> None:
    assert expected in text(user(words))


def config(**calling: Any) -> Json:
    return {"toolConfig": {"functionCallingConfig": calling}}


def test_modes_force_and_forbid_calls() -> None:
    assert calls(user("hello"), **config(mode="ANY"))[0][0] == "get_weather"
    assert calls(user("hello"), **config(mode="ANY", allowedFunctionNames=["setAlarm"]))[0][0] == "setAlarm"
    assert text(user("weather in Rome"), **config(mode="NONE"))


def test_finish_ends_with_that_reason_and_nothing_else() -> None:
    reply = answer({"contents": [user("finish MALFORMED_FUNCTION_CALL")], "tools": TOOLS})
    assert (reply.text, reply.calls, reply.finish) == ("", [], "MALFORMED_FUNCTION_CALL")


def test_json_output_fits_its_schema() -> None:
    schema = {"type": "OBJECT", "properties": {"next": {"type": "STRING", "enum": ["user", "model"]}}}
    output = {"responseMimeType": "application/json", "responseSchema": schema}
    reply = answer({"contents": [user("who is next?")], "generationConfig": output})
    assert reply.text == '{"next": "user"}'


def test_a_choice_among_what_is_no_list_is_none() -> None:
    schema = {"type": "object", "properties": {"next": {"type": "string", "enum": True}}}
    output = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    reply = answer({"contents": [user("who is next?")], "generationConfig": output})
    assert list(json.loads(reply.text)) == ["next"]
