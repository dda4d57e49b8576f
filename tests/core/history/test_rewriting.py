"""A placeholder, and hidden parts of server tools, become the model's true turns."""

import pytest

from addon.core.history.rewriting import DUMMY_SIGNATURE, NO_RESULT
from addon.core.history.steps import CallSlot, TrueStep, TrueTurn
from addon.core.model_names import Generation
from tests.contents import call, model, response, user
from tests.core.history.rewritten import (
    SEARCHED,
    TEMPLATE,
    rewritten,
    rules,
    true_turn,
    turn_id,
    visible_turn,
    without_functions,
)


def test_a_placeholder_becomes_the_calls_and_their_responses_before_the_clients_own_text() -> None:
    true = true_turn(1, call("get_weather", "c2ln", id="x1"), call("search", id="x2"))
    out = rewritten([user("hi"), visible_turn(true), user("and?")], {1: true})
    assert out == [
        user("hi"),
        model(call("get_weather", "c2ln", id="x1"), call("search", id="x2")),
        user(response("get_weather", id="x1"), response("search", id="x2")),
        user("and?"),
    ]


def test_text_before_the_calls_occurs_once() -> None:
    true = true_turn(1, "Let me look.", call())
    assert "Let me look.\n\nTool call completed" in true.visible_text
    out = rewritten([user("hi"), visible_turn(true), user("and?")], {1: true})
    assert out[1] == model("Let me look.", call())


def test_a_pending_call_gets_an_error_beside_an_answered_one_until_its_result_arrives() -> None:
    parts = (call("get_weather"), call("search"))
    early, late = true_turn(1, *parts, answers=[{"t": 1}, None]), true_turn(1, *parts, answers=[{"t": 1}, {"s": 2}])
    history = [user("hi"), visible_turn(early), user("and?")]
    first, then = rewritten(history, {1: early}), rewritten(history, {1: late})
    assert first[2]["parts"] == [response("get_weather", {"t": 1}), response("search", NO_RESULT)]
    assert then[2]["parts"] == [response("get_weather", {"t": 1}), response("search", {"s": 2})]


def test_the_last_step_keeps_its_text_without_results_and_an_earlier_step_is_rewritten() -> None:
    true = true_turn(1, call(), answers=[None])
    history = [user("hi"), visible_turn(true), user("and?")]
    assert rewritten(history, {1: true}) == history
    longer = [*history, model("Well."), user("so?")]
    assert rewritten(longer, {1: true})[1:3] == [model(call()), user(response(value=NO_RESULT))]


def test_a_history_that_begins_with_the_placeholder_stays() -> None:
    true = true_turn(1, call())
    history = [visible_turn(true), user("and?")]
    assert rewritten(history, {0: true}) == history


def test_a_repeated_placeholder_vanishes_and_the_user_turns_around_it_join() -> None:
    true = true_turn(1, call())
    out = rewritten(
        [user("hi"), visible_turn(true), user("and?"), visible_turn(true), user("now?")], {1: true, 3: true}
    )
    assert out == [user("hi"), model(call()), user(response()), user("and?"), user("now?")]


def test_placeholders_joined_with_other_text_in_one_run_are_expanded_in_place() -> None:
    one, two = true_turn(1, call("get_weather")), true_turn(2, "Then.", call("search"))
    run = [
        model("Before. "),
        visible_turn(one),
        model("\nThen.\n\n" + TEMPLATE.text(["search"], turn_id(2)) + " After."),
    ]
    out = rewritten([user("hi"), *run, user("?")], {1: (one, two)})
    assert out == [
        user("hi"),
        model("Before."),
        model(call("get_weather")),
        user(response("get_weather")),
        model("Then.", call("search")),
        user(response("search")),
        model("After."),
        user("?"),
    ]


def test_an_id_in_a_run_that_the_ledger_does_not_know_stays_text() -> None:
    one = true_turn(1, call())
    other = TEMPLATE.text(["search"], turn_id(9))
    out = rewritten([user("hi"), model(one.visible_text + "\n" + other), user("?")], {1: one})
    assert out[-2] == model(other)


def test_the_clients_own_calls_in_a_run_with_a_placeholder_stay_beside_their_responses() -> None:
    one = true_turn(1, call())
    history = [user("hi"), visible_turn(one), model(call("own", id="o")), user(response("own", id="o"), "?")]
    kept = rewritten(history, {1: one}, rules(strip=False, own=["own"]))
    assert kept == [user("hi"), model(call()), user(response()), *history[2:]]
    stripped = rewritten(history, {1: one})
    assert all("functionCall" not in part for content in stripped[3:] for part in content["parts"])


def test_a_text_that_differs_from_the_visible_one_is_kept() -> None:
    true = true_turn(1, "Let me look.", call())
    edited = "Edited by hand.\n\n" + TEMPLATE.text(["get_weather"], turn_id(1))
    out = rewritten([user("hi"), model(edited), user("?")], {1: true})
    assert out[1:3] == [model("Edited by hand."), model("Let me look.", call())]


def test_a_bare_placeholder_is_replaced_whole() -> None:
    true = true_turn(1, call())
    assert rewritten([user("hi"), model("Tool call completed"), user("?")], {1: true})[1] == model(call())


def test_calls_of_a_tool_that_is_no_longer_declared_become_text() -> None:
    true = true_turn(1, call("gone", args={"a": 1}), call("search"))
    out = rewritten([user("hi"), visible_turn(true), user("?")], {1: true})
    assert out[1] == model('[Called gone with {"a":1}]', "[Called search with {}]")
    assert out[2] == user('[gone returned {"result":"gone"}]', '[search returned {"result":"search"}]')


@pytest.mark.parametrize("strip", [True, False])
def test_without_functions_known_results_become_text_and_other_turns_stay_visible(strip: bool) -> None:
    known = true_turn(1, "Let me look.", call(signature="c2ln"), answers=[{"t": 1}])
    half = true_turn(2, call(), call("search"), answers=[{"t": 1}, None])
    history = [user("hi"), visible_turn(known), user("and?"), visible_turn(half), user("so?")]
    assert rewritten(history, {1: known, 3: half}, without_functions(strip=strip)) == [
        user("hi"),
        model("Let me look.", "[Called get_weather with {}]"),
        user('[get_weather returned {"t":1}]'),
        *history[2:],
    ]


@pytest.mark.parametrize("strip", [True, False])
def test_without_functions_a_whole_loop_becomes_text(strip: bool) -> None:
    steps = [
        TrueStep(model("Hm.", call(args={"n": 1})), (CallSlot("get_weather", "a"),)),
        TrueStep(model(call("search")), (CallSlot("search", "b"),)),
        TrueStep(model("Cold."), ()),
    ]
    true = TrueTurn(
        turn_id(1), steps, {"a": {"response": {"t": 1}}, "b": {"response": {"s": 2}}}, visible_text="Hm.Cold."
    )
    history = [user("hi"), model("Hm.Cold."), user("so?")]
    assert rewritten(history, {1: true}, without_functions(strip=strip)) == [
        user("hi"),
        model("Hm.", '[Called get_weather with {"n":1}]'),
        user('[get_weather returned {"t":1}]'),
        model("[Called search with {}]"),
        user('[search returned {"s":2}]'),
        model("Cold."),
        user("so?"),
    ]
    late = TrueTurn(turn_id(1), steps, {"a": {"response": {"t": 1}}, "b": None}, visible_text="Hm.Cold.")
    assert rewritten(history, {1: late}, without_functions(strip=strip)) == history


def test_without_functions_a_mixed_step_becomes_text_once_its_results_are_known() -> None:
    own, by = {"functionCall": {"name": "own", "args": {}}}, without_functions(strip=False, own=["own"])
    history = [user("hi"), model(own), user(response("own", {"o": 1}), "so?")]
    pending = true_turn(1, call(), own, answers=[None, "own"])
    assert rewritten(history, {1: pending}, by) == history
    known = true_turn(1, call(), own, answers=[{"t": 1}, "own"])
    assert rewritten(history, {1: known}, by) == [
        user("hi"),
        model("[Called get_weather with {}]", "[Called own with {}]"),
        user('[get_weather returned {"t":1}]', '[own returned {"o":1}]'),
        user("so?"),
    ]


def test_without_functions_invalid_calls_become_text_even_without_results() -> None:
    true = true_turn(1, call(), answers=[None], passthrough=True)
    history = [user("hi"), model(call()), user("so?")]
    assert rewritten(history, {1: true}, without_functions(strip=False)) == [
        user("hi"),
        model("[Called get_weather with {}]"),
        user('[get_weather returned {"error":"no result"}]'),
        user("so?"),
    ]


def test_calls_go_under_the_names_of_this_request() -> None:
    true = true_turn(1, call("get_weather"))
    out = rewritten(
        [user("hi"), visible_turn(true), user("?")], {1: true}, rules(names={"get_weather": "get_weather_g2"})
    )
    assert out[1:3] == [model(call("get_weather_g2")), user(response("get_weather_g2", {"result": "get_weather"}))]


def test_an_api_version_without_ids_gets_none() -> None:
    true = true_turn(1, call(id="x1"))
    out = rewritten([user("hi"), visible_turn(true), user("?")], {1: true}, rules(ids=False))
    assert out[1:3] == [model(call()), user(response())]


def test_a_true_turn_is_written_anew_if_names_model_or_ids_differ() -> None:
    true = true_turn(1, call(id="x1"))
    history = [user("hi"), visible_turn(true), user("?")]
    first = rewritten(history, {1: true})
    assert rewritten(history, {1: true}, rules(ids=False)) != first
    assert rewritten(history, {1: true}, rules(names={"get_weather": "w"})) != first
    assert rewritten(history, {1: true}, rules(model=(3, 5))) != first
    assert rewritten(history, {1: true}) == first


@pytest.mark.parametrize(
    ("model_version", "later", "signed"),
    [((2, 5), False, False), ((3, 0), False, True), ((3, 0), True, False), ((3, 5), True, True), (None, True, True)],
)
def test_a_dummy_signature_is_added_only_if_gemini_refuses_the_call_without(
    model_version: Generation, later: bool, signed: bool
) -> None:
    true = true_turn(1, call("get_weather"), call("own"), answers=[{"t": 1}, "own"])
    history = [user("hi"), model(call("own")), user(response("own"))]
    if later:
        history += [model("done"), user("next")]
    by = rules(model_version, strip=False, own=["own"])
    for _ in range(2):
        parts = rewritten(history, {1: true}, by)[1]["parts"]
        assert [part.get("thoughtSignature") for part in parts] == [DUMMY_SIGNATURE if signed else None, None]


def test_a_dummy_for_the_current_turn_is_not_remembered_for_later_ones() -> None:
    true = true_turn(1, call())
    now, later = [user("hi"), visible_turn(true)], [user("hi"), visible_turn(true), user("next")]
    assert "thoughtSignature" in rewritten(now, {1: true}, rules((3, 0)))[1]["parts"][0]
    assert "thoughtSignature" not in rewritten(later, {1: true}, rules((3, 0)))[1]["parts"][0]


RESULTS = {"toolResponse": {"toolType": "GOOGLE_SEARCH", "id": "s", "response": {"r": 2}}}


def test_hidden_server_tool_parts_are_restored_only_if_the_request_may_hold_them() -> None:
    true = true_turn(1, SEARCHED, RESULTS, "Found.", visible_text="Found.")
    history = [user("hi"), model("Found."), user("?")]
    assert rewritten(history, {1: true}, rules(server_tools=True))[1] == model(SEARCHED, RESULTS, "Found.")
    assert rewritten(history, {1: true}) == history


def test_hidden_server_tool_parts_are_restored_in_a_turn_with_the_clients_own_calls() -> None:
    true = true_turn(1, SEARCHED, RESULTS, call("own"), answers=["own"])
    history = [user("hi"), model(call("own")), user(response("own"))]
    out = rewritten(history, {1: true}, rules(strip=False, own=["own"], server_tools=True))
    assert out == [user("hi"), model(SEARCHED, RESULTS, call("own")), history[2]]
    assert rewritten(history, {1: true}, rules(strip=False, own=["own"]))[1]["parts"][-1] == call("own")


def test_server_tool_parts_beside_calls_become_text_if_the_request_may_not_hold_them() -> None:
    true = true_turn(1, SEARCHED, call())
    history = [user("hi"), visible_turn(true), user("?")]
    assert rewritten(history, {1: true}, rules(server_tools=True))[1] == model(SEARCHED, call())
    assert rewritten(history, {1: true})[1] == model('[Used GOOGLE_SEARCH with {"q":1}]', call())
