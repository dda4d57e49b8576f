"""The Contents that a request adds to a history: calls as the model made them, their responses in order, nothing
lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.history import AddedContents, StoredCalls
from addon.core.dialects.responses.request import read_request
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.fake_gemini import history as strict
from addon.fake_gemini.routes import find_model
from tests.contents import model, user

A = {"functionCall": {"id": "g1", "name": "a", "args": {"n": 1}}, "thoughtSignature": "c2ln"}
B = {"functionCall": {"id": "g2", "name": "b", "args": {}}}
ANSWER_B = {"functionResponse": {"id": "g2", "name": "b", "response": {"result": "done"}}}
CALLS: dict[str, Any] = {"call_a": A, "call_b": B}
WAITING = StoredCalls(calls=CALLS, waiting=["call_a", "call_b"], has_history=True)
HALF = StoredCalls(calls=CALLS, waiting=["call_a", "call_b"], responses={"call_b": ANSWER_B}, has_history=True)
HI = {"role": "user", "content": "hi"}
DUMMY = {"thoughtSignature": DUMMY_SIGNATURE}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": arguments}


def output(name: str, result: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{name}", "output": result}


def answer(part: Any, result: str = "done") -> dict[str, Any]:
    named = {k: v for k, v in part["functionCall"].items() if k != "args"}
    return {"functionResponse": {**named, "response": {"result": result}}}


def add(items: Any, past: StoredCalls = WAITING, model: str = "gemini-3-flash") -> AddedContents:
    return read_request({"model": model, "input": items}).add_to(past)


def test_the_calls_that_an_input_speaks_of_are_listed_once_each() -> None:
    wanted = read_request({"model": "gemini-3-flash", "input": [HI, call("a"), call("b"), output("b"), output("a")]})

    assert wanted.call_ids == ["call_a", "call_b"]


def test_outputs_of_waiting_calls_go_in_the_order_of_the_calls_before_other_words() -> None:
    added = add([HI, output("b"), output("a")])

    assert added == AddedContents([user(answer(A), answer(B), {"text": "hi"})], [])


def test_some_outputs_leave_the_others_missing_and_nothing_to_send() -> None:
    added = add([output("b")])

    assert added == AddedContents([user(answer(B))], ["call_a"])


def test_a_stored_output_has_a_call_id_even_if_the_model_gave_none() -> None:
    anonymous = {"functionCall": {"name": "b", "args": {}}}
    past = StoredCalls(calls={"call_a": A, "call_b": anonymous}, waiting=["call_a", "call_b"], has_history=True)

    (kept,) = add([output("b")], past).contents

    assert kept["parts"][0]["functionResponse"]["id"] == "call_b"


def test_outputs_one_by_one_end_like_outputs_at_once() -> None:
    second = add([output("a"), HI], HALF)

    assert second == add([output("a"), output("b"), HI])


def test_an_output_may_be_given_again_but_not_changed() -> None:
    assert add([output("b")], HALF) == AddedContents([], ["call_a"])
    assert add([output("b"), output("a")], HALF) == add([output("a"), output("b")])
    with pytest.raises(Invalid, match="before") as caught:
        add([output("b", "other"), output("a")], HALF)
    assert caught.value.param == "input[0].output"


def test_messages_beside_an_output_are_kept_while_hidden_calls_wait() -> None:
    past = StoredCalls(calls=CALLS, waiting=["call_a", "call_b"], hidden=["call_b"], has_history=True)

    assert add([HI, output("a")], past) == AddedContents([user(answer(A), {"text": "hi"})], ["call_b"])
    with pytest.raises(Invalid, match=r"for function call call_a\."):
        add([HI], past)
    with pytest.raises(Invalid, match="middle of the model's turn") as caught:
        add([output("a"), {"role": "assistant", "content": "so"}], past)
    assert caught.value.param == "input[1]"


SINGLE = StoredCalls(calls=CALLS, steps=dict.fromkeys(CALLS, "resp_1"), step=CALLS)


def test_an_input_that_ends_amid_a_step_gets_the_rest_of_its_calls() -> None:
    added = add([HI, call("a"), output("a")], SINGLE)

    assert added == AddedContents([user({"text": "hi"}), model(A, B), user(answer(A))], ["call_b"])


@pytest.mark.parametrize("after", [[HI], [call("b"), output("b")]], ids=["words", "the other call"])
def test_an_input_that_continues_a_step_or_knows_all_of_it_goes_upstream(after: list[Any]) -> None:
    assert add([HI, call("a"), output("a"), *after], SINGLE).missing == []


def test_an_input_that_ends_amid_a_step_still_has_all_outputs_of_what_it_knows() -> None:
    past = StoredCalls(calls=CALLS, steps=SINGLE.steps, step={**CALLS, "call_c": B})

    with pytest.raises(Invalid, match=r"for function call call_b\."):
        add([HI, call("a"), call("b"), output("a")], past)


def test_calls_that_wait_may_be_told_again_beside_their_outputs() -> None:
    added = add([call("a"), call("b"), output("a"), output("b")])

    assert added.contents == [user(answer(A), answer(B))]


def test_messages_without_the_missing_outputs_are_refused_naming_all_calls() -> None:
    with pytest.raises(Invalid, match=r"No tool output found for function calls call_a, call_b\.") as caught:
        add([HI])

    assert caught.value.param == "input"


def test_outputs_of_unknown_calls_are_refused_naming_all() -> None:
    with pytest.raises(Invalid, match=r"No tool call found .* call_ids call_x, call_y\.") as caught:
        add([output("a"), output("x"), output("y")])

    assert caught.value.param == "input[1].call_id"


def test_one_unknown_call_has_openais_error_message() -> None:
    with pytest.raises(Invalid) as caught:
        add([output("xxx")], StoredCalls())

    assert caught.value.message == "No tool call found for function call output with call_id call_xxx."


def test_an_output_before_its_call_is_refused() -> None:
    with pytest.raises(Invalid, match="No tool call found"):
        add([HI, output("a"), call("a")], StoredCalls())


def test_an_output_of_a_call_that_does_not_wait_is_refused() -> None:
    with pytest.raises(Invalid, match="call_a does not wait") as caught:
        add([HI, output("a")], StoredCalls(calls=CALLS, has_history=True))

    assert caught.value.param == "input[1].call_id"


# input of a client that keeps its own history → contents; A and B are known to have been made
KEPT: dict[str, tuple[list[Any], list[Any]]] = {
    "a step": (
        [HI, call("a"), output("a")],
        [user({"text": "hi"}), model(A), user(answer(A))],
    ),
    "a step and words after it": (
        [HI, call("a"), output("a"), HI],
        [user({"text": "hi"}), model(A), user(answer(A), {"text": "hi"})],
    ),
    "parallel calls": (
        [HI, call("a"), call("b"), output("b"), output("a")],
        [user({"text": "hi"}), model(A, B), user(answer(A), answer(B))],
    ),
    "parallel calls that are told one after the other": (
        [HI, call("a"), output("a"), call("b"), output("b")],
        [user({"text": "hi"}), model(A, B), user(answer(A), answer(B))],
    ),
    "words of the model around a call": (
        [HI, {"role": "assistant", "content": "so"}, call("a"), {"role": "assistant", "content": "then"}, output("a")],
        [user({"text": "hi"}), model({"text": "so"}, A, {"text": "then"}), user(answer(A))],
    ),
    "words of the user before the output": (
        [HI, call("a"), HI, output("a")],
        [user({"text": "hi"}), model(A), user(answer(A), {"text": "hi"})],
    ),
    "an answer after the step": (
        [HI, call("a"), output("a"), {"role": "assistant", "content": "so"}, HI],
        [user({"text": "hi"}), model(A), user(answer(A)), model({"text": "so"}), user({"text": "hi"})],
    ),
}


@pytest.mark.parametrize(("items", "contents"), KEPT.values(), ids=KEPT)
def test_calls_in_a_clients_own_history_go_upstream_as_the_model_made_them(
    items: list[Any], contents: list[Any]
) -> None:
    past = StoredCalls(calls=CALLS, steps={"call_a": "resp_1", "call_b": "resp_1"})

    assert add(items, past).contents == contents


def test_consecutive_steps_stay_separate() -> None:
    past = StoredCalls(calls=CALLS, steps={"call_a": "resp_1", "call_b": "resp_2"})

    added = add([HI, call("a"), output("a"), call("b"), output("b")], past)

    assert added.contents == [
        user({"text": "hi"}),
        model(A),
        user(answer(A)),
        model(B | DUMMY),
        user(answer(B)),
    ]


def test_an_unknown_call_goes_upstream_with_the_dummy_signature() -> None:
    x, y = {"functionCall": {"name": "x", "args": {"n": 1}}}, {"functionCall": {"name": "y", "args": {}}}

    added = add([HI, call("x", '{"n":1}'), call("y"), output("x"), output("y")], StoredCalls())
    old = add([HI, call("x", '{"n":1}'), output("x")], StoredCalls(), "gemini-2.5-flash")

    assert added.contents[1:] == [model(x | DUMMY, y), user(answer(x), answer(y))]
    assert old.contents[1] == model(x)


def test_calls_without_outputs_are_refused_naming_all() -> None:
    with pytest.raises(Invalid, match=r"No tool output found for function calls call_a, call_x\."):
        add([HI, call("a"), call("b"), output("b"), HI, call("x")], StoredCalls())


def test_calls_may_come_first_after_a_history() -> None:
    assert add([call("x"), output("x")], StoredCalls(has_history=True)).contents[0]["role"] == "model"


NAMES = ["a", "b", "x", "y", "z"]
STEPS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), max_size=3)


@given(steps=STEPS, data=st.data())
def test_the_service_accepts_any_order_of_a_clients_steps(steps: list[list[str]], data: Any) -> None:
    """The outputs of each step in any order, with or without messages of either side between the steps."""
    items: list[Any] = [HI]
    for index, names in enumerate(steps):
        named = [f"{name}{index}" for name in names]
        if data.draw(st.booleans()):
            items.append({"role": "assistant", "content": "so"})
        items += [call(name) for name in named]
        if data.draw(st.booleans()):
            items.append({"role": "assistant", "content": "then"})
        items += [output(name) for name in data.draw(st.permutations(named))]
        if data.draw(st.booleans()):
            items.append(HI)
    gemini = find_model("gemini-3.5-flash")
    assert gemini is not None

    contents = add(items, StoredCalls(), gemini.name).contents

    strict.check_contents(contents, gemini, frozenset())
    turns = strict.turns(contents)
    strict.check_order(turns, gemini)
    strict.check_signatures(turns, gemini, frozenset())
    assert sum(len(turn.calls) for turn in turns) == sum(len(names) for names in steps)
