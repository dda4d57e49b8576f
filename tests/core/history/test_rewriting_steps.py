"""Steps with calls of the client's own."""

from typing import Any

import pytest

from addon.core.framing.documents import encode
from addon.core.history.request import parse
from addon.core.history.rewriting import NO_RESULT, rewrite
from tests.contents import call, model, response, user
from tests.core.history.rewritten import SEARCHED, rewritten, rules, true_turn

# --- shared steps ------------------------------------------------------------------------------------------------


def test_a_mixed_step_is_restored_whole_with_both_sides_responses_in_call_order() -> None:
    true = true_turn(1, call("own", "c2ln", id="a"), call("get_weather", id="b"), answers=["own", {"t": 1}])
    history = [user("hi"), model(call("own", "c2ln", id="a")), user("By the way", response("own", id="a"))]
    out = rewritten(history, {1: true}, rules(strip=False, own=["own"]))
    assert out == [
        user("hi"),
        model(call("own", "c2ln", id="a"), call("get_weather", id="b")),
        user(response("own", id="a"), response("get_weather", {"t": 1}, id="b")),
        user("By the way"),
    ]


def test_calls_in_a_history_that_the_service_keeps_get_their_responses_whatever_is_declared() -> None:
    """The client's turn only names the service's history, so it holds no call to match or to turn into text."""
    named = [user(""), model("an id"), user(response("own", {"r": 1}, id="c2"), "and?")]
    mixed = true_turn(1, call("gone", id="c1"), call("own", id="c2"), answers=[None, "own"])
    kept = rules(strip=False)._replace(keeps_history=True)
    content, answered, words = rewritten(named, {1: mixed}, kept)[1:]
    assert content == mixed.steps[0].content
    assert answered["parts"] == [response("gone", NO_RESULT, id="c1"), response("own", {"r": 1}, id="c2")]
    assert words == user("and?")
    unanswered = true_turn(2, call("gone", id="c1"), answers=[None])
    assert rewritten([*named[:2], user("and?")], {1: unanswered}, kept)[2] == user(response("gone", NO_RESULT, id="c1"))


def test_a_mixed_step_is_restored_even_without_answers() -> None:
    true = true_turn(1, call("get_weather"), call("own"), answers=[None, "own"])
    out = rewritten([user("hi"), model(call("own")), user("?")], {1: true}, rules(strip=False, own=["own"]))
    assert out[1:] == [
        model(call("get_weather"), call("own")),
        user(response("get_weather", NO_RESULT), response("own", NO_RESULT)),
        user("?"),
    ]


def test_a_mixed_step_of_a_stripped_client_tool_becomes_text() -> None:
    true = true_turn(1, call("get_weather"), call("own"), answers=[{"t": 1}, "own"])
    out = rewritten([user("hi"), model(call("own")), user(response("own"))], {1: true})
    assert out[1:] == [
        model("[Called get_weather with {}]", "[Called own with {}]"),
        user('[get_weather returned {"t":1}]', '[own returned {"result":"own"}]'),
    ]


def test_a_step_passed_through_and_answered_stays_unchanged() -> None:
    true = true_turn(1, call(id="a"), passthrough=True, answers=[{"other": 1}])
    history = [user("hi"), model(call(id="a")), user(response(id="a"))]
    assert rewritten(history, {1: true}) == history


def test_text_before_the_clients_responses_moves_behind_them() -> None:
    true = true_turn(1, call(), passthrough=True)
    out = rewritten([user("hi"), model(call()), user("By the way", response())], {1: true})
    assert out[1:] == [model(call()), user(response()), user("By the way")]


def test_a_response_that_the_client_lacks_is_inserted_and_its_own_are_put_in_call_order() -> None:
    true = true_turn(1, call("get_weather"), call("search"), passthrough=True, answers=[{"t": 1}, None])
    step = model(call("get_weather"), call("search"))
    out = rewritten([user("hi"), step, user("text", response("search"))], {1: true})
    assert out[1:] == [step, user(response("get_weather", {"t": 1}), response("search")), user("text")]


def test_the_clients_responses_are_found_by_the_names_it_knows() -> None:
    true = true_turn(1, call("get_weather"), passthrough=True, answers=[None])
    history = [user("hi"), model(call("weather_g2")), user(response("weather_g2", {"mine": 1}))]
    out = rewritten(history, {1: true}, rules(strip=False, names={"get_weather": "weather_g3"}))
    assert out[1:] == [model(call("weather_g3")), user(response("weather_g3", {"mine": 1}))]


def test_a_response_that_answers_no_call_of_the_step_becomes_text() -> None:
    true = true_turn(1, call("get_weather"), passthrough=True)
    history = [user("hi"), model(call("get_weather")), user(response("get_weather"), response("stray"))]
    out = rewritten(history, {1: true})
    assert out[2:] == [user(response("get_weather")), user('[stray returned {"result":"stray"}]')]


def test_a_lost_signature_is_restored_and_the_base64_alphabet_does_not_matter() -> None:
    true = true_turn(1, call(signature="-_8="), passthrough=True)
    lost = [user("hi"), model(call()), user(response())]
    assert rewritten(lost, {1: true})[1] == model(call(signature="-_8="))
    same = [user("hi"), model(call(signature="+/8")), user(response())]
    assert rewritten(same, {1: true}) == same


# --- the client's own calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([model(call("own")), user(response("own"), "?")], [model("[Called own with {}]"), user("[own ret", "?")]),
        ([model(call("get_weather")), user(response("get_weather"))], None),
        ([model(call("get_weather")), user("ignored")], [model("[Called get_weather with {}]"), user("ignored")]),
        ([model("a"), user(response("own"))], [model("a"), user("[own ret")]),
        (
            [model(call("get_weather")), user("text", response("get_weather"))],
            [model("[Called get_weather with {}]"), user("text", "[get_weather ret")],
        ),
        (
            [model(call("get_weather"), call("own")), user(response("get_weather"), response("own"))],
            [model("[Called get_weather with {}]", "[Called own with {}]"), user("[get_weather ret", "[own ret")],
        ),
        ([model(SEARCHED, "a"), user("b")], [model('[Used GOOGLE_SEARCH with {"q":1}]', "a"), user("b")]),
    ],
    ids=[
        "undeclared",
        "declared",
        "unanswered",
        "orphan response",
        "text before the response",
        "half declared",
        "server tool",
    ],
)
def test_strip_turns_undeclared_pairs_into_text(history: Any, expected: Any) -> None:
    history = [user("hi"), *history]
    out = rewritten(history, {})
    for content in out:
        for part in content["parts"]:
            if "text" in part and " returned " in part["text"]:
                part["text"] = part["text"].split("urned")[0]
    assert out == (history if expected is None else [user("hi"), *expected])


@pytest.mark.parametrize("role", ["model", "function", "user"])
def test_responses_as_text_have_the_role_user_whatever_the_client_sent(role: str) -> None:
    answers = {**user(response("own")), "role": role}
    out = rewritten([user("hi"), model(call("own")), answers, user("?")], {})
    assert [content["role"] for content in out] == ["user", "model", "user", "user"]
    assert out[2] == user('[own returned {"result":"own"}]')


@pytest.mark.parametrize("role", ["model", "function"])
def test_responses_of_an_unchanged_step_keep_their_bytes(role: str) -> None:
    history = [user("hi"), model(call("get_weather")), {**user(response("get_weather")), "role": role}, user("?")]
    assert rewritten(history, {}) == history


def test_keep_leaves_the_clients_own_pairs_alone() -> None:
    history = [user("hi"), model(call("own")), user(response("own"))]
    assert rewritten(history, {}, rules(strip=False)) == history


def test_turns_that_need_no_change_are_not_decoded() -> None:
    request = parse(encode({"contents": [user("hi"), model("a"), user("b")]}))
    assert rewrite(request.body, request.history, {}, rules()) is None
