"""The ledger's view of a turn, and the last step of a history."""

from typing import Any

import pytest

from addon.core.framing.documents import Document, encode
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import parse
from addon.core.history.steps import (
    CallSlot,
    TrueStep,
    TrueTurn,
    client_calls,
    client_results,
    last_step,
    segments,
    with_restored_calls,
)

TEMPLATE = Placeholder("Tool call completed: {names} [{turn_id}]")


def content(role: str, *parts: Any) -> Document:
    return {"role": role, "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def call(name: str = "f", **fields: Any) -> Document:
    return {"functionCall": {"name": name, **fields}}


def answer(name: str = "f", **fields: Any) -> Document:
    return {"functionResponse": {"name": name, "response": fields.pop("response", {"r": 1}), **fields}}


def turn(n: int, *slots: str | None, passthrough: bool = False, lead: str = "", **answers: Any) -> TrueTurn:
    visible = content("model", *[call(f"tool{i}") for i in range(len(slots))])
    turn_id = f"turn_{n:016x}"
    visible_text = lead + TEMPLATE.after(lead, ["f"], turn_id)
    named = tuple(CallSlot(f"tool{i}", slot) for i, slot in enumerate(slots))
    by_id = {slot: answers.get(slot) for slot in slots if slot}
    return TrueTurn(turn_id, [TrueStep(visible, named)], by_id, visible_text=visible_text, passthrough=passthrough)


@pytest.mark.parametrize(
    ("slots", "passthrough", "shares"),
    [(["a"], False, False), (["a", None], False, True), (["a"], True, True), ([], False, False), ([None], False, True)],
)
def test_a_step_is_shared_if_the_client_answers_calls_of_it(slots: Any, passthrough: bool, shares: bool) -> None:
    assert turn(1, *slots, passthrough=passthrough).is_shared is shares


def test_the_calls_without_an_answer() -> None:
    assert turn(1, "a", None, "b", "c", b={}).pending == ["a", "c"]


def test_the_calls_that_the_client_has() -> None:
    mixed = turn(1, "a", None, "b", None)
    visible = [content("model", call("x")), content("model", "text", call("y"))]
    assert client_calls(visible, mixed) == [None, {"name": "x"}, None, {"name": "y"}]
    assert client_calls([], turn(1, "a", passthrough=True)) == [None]


def test_for_a_client_that_only_names_its_turn_the_calls_are_the_models() -> None:
    assert client_calls(None, turn(1, "a", None, "b")) == [None, {"name": "tool1"}, None]
    assert client_calls(None, turn(1, "a", "b", passthrough=True)) == [{"name": "tool0"}, {"name": "tool1"}]


@pytest.mark.parametrize(
    ("visible", "answered", "given"),
    [
        ([call(id="1"), call(id="2")], [answer(id="2", response={"r": 2}), answer(id="1")], {"a": 1, "b": 2}),
        ([call(), call()], [answer(), answer(response={"r": 2})], {"a": 1, "b": 2}),
        ([call("g"), call("f")], [answer("f", response={"r": 2}), answer("g")], {"a": 1, "b": 2}),
        ([call(), call()], [answer(id="made up")], {"a": 1}),
        ([call(id="1"), call(id="2")], [answer(), answer(id="3")], {"a": 1}),
        ([call("g"), call("h")], [answer("f")], {}),
        ([call(), call()], ["text"], {}),
    ],
    ids=["ids", "order", "names", "the client's own id", "no id", "another name", "none"],
)
def test_the_clients_answers(visible: list[Any], answered: list[Any], given: dict[str, int]) -> None:
    true = turn(1, "a", "b", passthrough=True)
    found = client_results([content("model", *visible)], [content("user", *answered)], true)
    assert found == {call_id: {"response": {"r": value}} for call_id, value in given.items()}


def test_answered_calls_and_calls_without_passthrough_get_no_client_answer() -> None:
    visible, answered = [content("model", call(), call())], [content("user", answer(), answer())]
    assert client_results(visible, answered, turn(1, "a", "b", passthrough=True, a={"response": {}})) == {
        "b": {"response": {"r": 1}}
    }
    assert client_results(visible, answered, turn(1, "a", "b")) == {}


def test_a_text_in_segments() -> None:
    one, two = turn(1, "a", lead="Said."), turn(2, "b")
    found = {one.turn_id: one, two.turn_id: two}
    unknown = TEMPLATE.text(["x"], "turn_" + "f" * 16)
    text = f"Before. {one.visible_text} {unknown}\n{two.visible_text} After."
    assert list(segments(text, found, TEMPLATE)) == [("Before.", one), (unknown, two), ("After.", None)]
    assert list(segments("nothing", found, TEMPLATE)) == []


ONE, TWO = turn(1, "a"), turn(2, "b")


@pytest.mark.parametrize(
    ("runs", "hits", "last"),
    [
        (["u", ONE, "u"], {1: [ONE]}, ONE),
        (["u", ONE, "u", "m", "u"], {1: [ONE]}, None),
        (["u", ONE, "u", ONE, "u"], {1: [ONE], 3: [ONE]}, ONE),
        (["u", ONE, "u", "m", "u", ONE, "u"], {1: [ONE], 5: [ONE]}, None),
        (["u", ONE, "u", TWO, "u"], {1: [ONE], 3: [TWO]}, TWO),
        (["u", [ONE, TWO], "u"], {1: [ONE, TWO]}, TWO),
        (["u", ONE, "u", [ONE, "and text"], "u"], {1: [ONE], 3: [ONE]}, None),
        (["u", "m", "u"], {}, None),
        (["u"], {}, None),
    ],
    ids=["it", "text after it", "again", "again after text", "newer", "joined", "again with text", "none", "no turn"],
)
def test_the_last_step(runs: list[Any], hits: Any, last: TrueTurn | None) -> None:
    contents = []
    for run in runs:
        texts = [
            one.visible_text if isinstance(one, TrueTurn) else one for one in (run if isinstance(run, list) else [run])
        ]
        contents.append(content("user" if run == "u" else "model", "\n".join(texts)))
    body = encode({"contents": contents})
    history = parse(body).history
    history.identify(body)
    assert last_step(history, hits, TEMPLATE) is last


# --- records ------------------------------------------------------------------------------------------------------

MADE: dict[str, Document] = {
    "a": {"name": "f", "args": {"n": 1}, "id": "x"},
    "b": {"name": "f", "args": {"n": 2}},
    "c": {"name": "g", "args": {}},
}
A, B, C = (CallSlot(str(one["name"]), call_id) for call_id, one in MADE.items())


@pytest.mark.parametrize(
    ("stored", "slots", "whole", "left"),
    [
        ([], [A], [{"functionCall": MADE["a"]}], [A]),
        (["t"], [A, B], ["t", {"functionCall": MADE["a"]}, {"functionCall": MADE["b"]}], [A, B]),
        ([call(args={"n": 2})], [A, B], [{"functionCall": MADE["a"]}, call(args={"n": 2})], [A, B]),
        ([call(args={"n": 1}), "t"], [A, B], [call(args={"n": 1}), "t", {"functionCall": MADE["b"]}], [A, B]),
        (["t", call("g")], [A, C], ["t", {"functionCall": MADE["a"]}, call("g")], [A, C]),
        (
            [call("own")],
            [CallSlot("own", None), A],
            [call("own"), {"functionCall": MADE["a"]}],
            [CallSlot("own", None), A],
        ),
        ([call("g")], [CallSlot("own", None), C], [call("g")], [C]),
        (["t"], [CallSlot("f", "gone")], ["t"], []),
    ],
    ids=["alone", "both", "first", "second", "text", "client's", "client's gone", "unknown"],
)
def test_calls_that_an_older_record_lacks_are_put_back_in_their_places(
    stored: Any, slots: list[CallSlot], whole: Any, left: list[CallSlot]
) -> None:
    step = with_restored_calls(content("model", *stored), slots, MADE)
    assert step == TrueStep(content("model", *whole), tuple(left))
